"""The names a user writes: they exist, they are typed, they load late, they are documented."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import sharedds

ROOT = Path(__file__).parents[1]

# Names that the documents need not mention.
UNDOCUMENTED = {"__version__"}


def typed_names() -> dict[str, str]:
    """Return the names that the root imports for type checkers, with where they come from."""
    tree = ast.parse((ROOT / "sharedds" / "__init__.py").read_text(encoding="utf-8"))
    return {
        alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sharedds")
        for alias in node.names
    }


def documents() -> str:
    """Return the text of the README and of all pages in docs."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize("name", sharedds.__all__)
def test_each_public_name_exists_where_it_is_said_to_be(name: str) -> None:
    """The name is found, in the module whose import type checkers see."""
    value = getattr(sharedds, name)
    if name == "__version__":
        assert isinstance(value, str)
    elif name in ("errors", "testing"):
        assert isinstance(value, ModuleType)
    else:
        assert value is getattr(importlib.import_module(typed_names()[name]), name)
        assert not isinstance(value, ModuleType)
        assert value.__name__ == name
        assert value.__module__.startswith(typed_names()[name])


def test_type_checkers_see_the_same_names() -> None:
    """The list, the imports for type checkers and the table of homes agree."""
    typed = typed_names()
    assert set(typed) | {"__version__"} == set(sharedds.__all__)
    del typed["errors"], typed["testing"]
    assert typed == sharedds._HOMES


def test_dir_shows_the_public_names() -> None:
    """Completion in a notebook offers names that are not loaded yet."""
    assert set(sharedds.__all__) <= set(dir(sharedds))


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails like that of any module."""
    with pytest.raises(AttributeError, match="'sharedds' has no attribute 'Stor'"):
        _ = sharedds.Stor
    assert not hasattr(sharedds, "Stor")


def test_a_name_loads_only_its_own_room() -> None:
    """Asking for an error class loads nothing else."""
    code = (
        "import sys, sharedds\n"
        "sharedds.errors.StoreError\n"
        "print(sorted(name for name in sys.modules if name.startswith('sharedds')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == ["sharedds", "sharedds.errors"]


def test_the_version_is_that_of_the_package() -> None:
    """The number stands once, in the package's metadata."""
    assert sharedds.__version__ == importlib.metadata.version("sharedds")


def test_a_source_tree_without_metadata_has_a_version_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A folder on the path that nobody installed still imports and answers."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert sharedds.__getattr__("__version__") == "0+unknown"
    monkeypatch.undo()
    monkeypatch.delitem(vars(sharedds), "__version__")


@pytest.mark.parametrize("name", sorted({*sharedds.__all__} - UNDOCUMENTED))
def test_each_public_name_is_documented(name: str) -> None:
    """The README or a page in docs shows the name as code."""
    shown = rf"sharedds[. ]{name}\b|`{name}\b|\b{name}\(|^from sharedds.* import .*\b{name}\b"
    assert re.search(shown, documents(), re.MULTILINE)
