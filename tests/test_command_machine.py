"""``sharedds machine``: what a person and a program see of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sharedds.cli.machine import machine

KEYS = [
    "cpus",
    "memory",
    "shared_memory",
    "descriptors",
    "accelerator",
    "start_methods",
    "local_ranks",
    "local_ranks_reason",
    "is_daemon",
    "system",
    "storage",
]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_person_sees_one_screen(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain lines that fit the terminal, without colours."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(machine, ["here", "there"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= int(columns)
    assert "\x1b" not in result.output
    assert sum(line.startswith("storage") for line in lines) == 2


def test_a_program_sees_one_json_object(tmp_path: Path) -> None:
    """With the same keys on any machine, whatever a path holds."""
    odd = str(tmp_path / "a\nb \udcff")
    result = CliRunner().invoke(machine, ["--json", odd])
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    told = json.loads(line)
    assert list(told) == KEYS
    assert told["storage"][0]["path"] == odd
    assert told["memory"]["total"] > 0


def test_the_verb_is_on_the_command_line() -> None:
    """As ``sharedds machine``, in a process of its own, with a path that cannot be printed."""
    command: list[str | bytes] = [sys.executable, "-m", "sharedds", "machine", b"\xff\n"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert b"CPUs" in done.stdout
    assert b"\\udcff\\n" in done.stdout
