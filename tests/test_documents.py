"""What the documents show is what happens: snippets run, help texts and links are current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from processes import unmeasured

from sharedds.cli import VERBS, cli

ROOT = Path(__file__).parents[1]
SNIPPETS = re.findall(r"## ([^\n]+)\n+```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with what the snippets read: a few pictures, a few scans."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.jpg")
    (tmp_path / "scans").mkdir()
    for number in range(4):
        np.save(tmp_path / "scans" / f"{number}.npy", np.full((2, 3), number, np.float32))
    np.savez(tmp_path / "scans" / "weights.npz", weights=np.ones((2, 3), np.float32))
    return tmp_path


def test_the_readme_has_three_snippets() -> None:
    """Pack and train, subclass, own schema: each is tested below."""
    assert [title for title, _ in SNIPPETS] == ["Pack and train", "Subclass", "Your own schema"]


@pytest.mark.parametrize(("title", "code"), SNIPPETS)
def test_a_snippet_of_the_readme_runs_as_a_script(title: str, code: str, workplace: Path) -> None:
    """A reader can paste it: as a plain script, without a main guard."""
    (workplace / "snippet.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "snippet.py"],
        cwd=workplace,
        env={**unmeasured(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{title}: {done.stderr}"


def test_the_readme_fits_a_tall_screen() -> None:
    """What the project is for, two commands, three snippets; the rest lives in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80


def _help(name: str) -> str:
    result = CliRunner().invoke(cli, [name, "--help"], terminal_width=100, prog_name="sharedds")
    return result.output


def _commands_page() -> str:
    head = "# The command line\n\nEach verb is also a function: `sharedds.pack(...)`.\n"
    verbs = (f"\n## sharedds {name}\n\n```text\n{_help(name).rstrip()}\n```\n" for name in VERBS)
    return head + "".join(verbs)


def test_the_page_of_commands_is_current() -> None:
    """docs/commands.md shows the help texts as they are; UPDATE_DOCS=1 writes it anew."""
    page = ROOT / "docs" / "commands.md"
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(_commands_page())
    assert page.read_text() == _commands_page()


def test_every_option_is_explained() -> None:
    """No option of any verb without a line of help."""
    for name in VERBS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.help
        silent = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
        assert not silent, f"{name}: {silent}"


def test_links_between_documents_lead_somewhere() -> None:
    """Relative links in README and docs name files that exist."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
