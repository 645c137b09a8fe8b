"""The shape of the house: who may import whom, how long a file may be, what an import costs.

To add a module, put its name at its place in ``FLOORS``. To add a room (a package), add a ``Room``
with its modules in the order in which they may import one another; a room inside a room stands
among its modules in the same way.
"""

from __future__ import annotations

import ast
import functools
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import unmeasured


@dataclass(frozen=True, slots=True)
class Room:
    """A module, or a package with its modules and inner rooms from low to high."""

    name: str
    modules: tuple[str | Room, ...] = ()


# From low to high. A module imports from the floors below its own, or from its left on the same
# floor; inside a package, from its left as well. The package itself (its __init__) comes last.
FLOORS: dict[int, tuple[Room, ...]] = {
    0: (
        Room("errors"),
        Room("lazily"),
        Room("text"),
        Room("memory"),
        Room(
            "host",
            (
                "system",
                "mounts",
                "groups",
                "ranks",
                "cpus",
                "memory",
                "shared",
                "descriptors",
                "storage",
                "accelerator",
                "starting",
                "machine",
            ),
        ),
        Room("progress"),
        Room(
            "handles",
            ("storage", "reading", "process", "mapped", "shared", "writable", "environment"),
        ),
        Room(
            "codecs",
            (
                "header",
                "scratch",
                "jpeg",
                "png_chunks",
                "png_writer",
                "png",
                "tiff_plain",
                "tiff",
                "animated",
                "formats",
                "frames",
                "blocks",
                "pixels",
                "encoding",
                "images",
                "jpeg_layout",
                "jpeg_cuts",
                "jpeg_tiles",
                "tiles",
            ),
        ),
        Room("packed", ("files", "arrays", "ragged", "strings")),
        Room(
            "volumes",
            (
                "source",
                "geometry",
                "derived",
                "resampling",
                "other_grid",
                "changes",
                "voxels",
                "streams",
                "nifti_fields",
                "nifti",
                "npy",
                "itk_headers",
                "itk",
                "opening",
                "dicom_tags",
                "dicom_placement",
                "dicom_frames",
                "dicom_places",
                "dicom_spacing",
                "dicom_series",
                "dicom_pixels",
                "dicom",
            ),
        ),
        Room(
            "slides",
            (
                "source",
                "limits",
                "pixel_size",
                "libvips",
                "tiff_directory",
                "tiff_page",
                "tiff_unpack",
                "tiff_samples",
                "tiff_tiles",
                "tiff_pyramid",
                "aperio",
                "ome",
                "tiff_reader",
                "tiff",
                "flat",
                "jpeg2000",
                "vendor",
                "opening",
            ),
        ),
        Room("order", ("uniforms", "keys", "permutation", "epoch", "sampling", "state")),
    ),
    1: (
        Room(
            "store",
            (
                "pages",
                "structure",
                "layout",
                "schema",
                "header",
                "columns",
                "blocking",
                "block_cache",
                "regions",
                "array_meta",
                "assembly",
                "arrays",
                "requests",
                "encoded",
                "spool",
                "lock",
                "partial",
                "behind",
                "seal",
                "values",
                "prepare",
                "writer",
                "shard_index",
                "opened",
                "joined_columns",
                "joined",
                "pictures",
                "reader",
                "sharding",
                "verify",
                "duplicates",
                "info",
                "copying",
                "cut",
                "shard_writer",
                "shard_copies",
                "shard_changes",
            ),
        ),
        Room("cache", ("layout", "place", "named", "decoded")),
        Room("folder", ("names", "left_out", "classes", "rows", "walk", "index")),
    ),
    2: (
        Room("views", ("view", "crops", "full")),
        Room(
            "patches",
            (
                "location",
                "planar",
                "frame",
                "windows",
                "cutting",
                "sampler",
                "uniform",
                "grid",
                "tissue",
                "slices",
                "foreground",
                "slabs",
                "outputs",
                "aggregate",
                "heat",
                "pyramid",
            ),
        ),
        Room(
            "datasets",
            (
                "randomness",
                "rows",
                "offers",
                "splitting",
                "indexed",
                "records",
                "items",
                "lazy",
                "array_files",
                "memmap",
                "sources",
                "stored",
                "kept",
                "scaling",
                "pictures",
                "images",
                "stored_arrays",
                "volume_sources",
                "volume_cases",
                "volume_counts",
                "volume_cuts",
                "volume_files",
                "volume_items",
                "volumes",
                "slide_store",
                "slide_shares",
                "slide_bins",
                "slide_places",
                "slide_reading",
                "slide_items",
                "slides",
            ),
        ),
    ),
    3: (
        Room(
            "ingest",
            (
                "executor",
                "options",
                "report",
                "places",
                "listing",
                "packing",
                Room("images", ("prepare", "labels", "examine", "job", "pack", "ways", "planning")),
                Room(
                    "volumes",
                    (
                        "cases",
                        "layouts",
                        "table",
                        "series",
                        "scan",
                        "scratch",
                        "slabs",
                        "narrow",
                        "foreground",
                        "labels",
                        "recipe",
                        "codecs",
                        "prepare",
                        "job",
                        "pack",
                    ),
                ),
                Room(
                    "slides",
                    (
                        "index",
                        "shapes",
                        "recipe",
                        "scan",
                        "spool",
                        "levels",
                        "prepare",
                        "job",
                        "pack",
                    ),
                ),
                "kinds",
                "pack",
                Room(
                    "exports",
                    (
                        "folder",
                        "panels",
                        "nifti",
                        "volumes",
                        "volume_panels",
                        "tiff",
                        "slides",
                        "slide_panels",
                        "preview",
                        "export",
                    ),
                ),
            ),
        ),
        Room(
            "doors",
            (
                "reading",
                "labels",
                "stream",
                "tar_members",
                "tars",
                "tables",
                "coco",
                "voc",
                "outgoing",
                "arrow_columns",
                "arrow",
                "pickles",
                "chunk_values",
                "chunks",
                "mds",
                "litdata",
                "datum",
                "lmdbs",
                "recognise",
                "job",
                "pack",
                "tar_writing",
                "parquet_writing",
                "mds_writing",
                "export",
            ),
        ),
        Room(
            "generators",
            (
                "torch_draws",
                "thread_random",
                "numpy_state",
                "python_state",
                "torch_state",
                "seeding",
                "sparing",
                "held",
            ),
        ),
        Room(
            "workers",
            (
                "importing",
                "launching",
                "preload_pictures",
                "preload",
                "transport",
                "postmortem",
                "queues",
                "segments",
                "loans",
                "mapped",
                "lending",
                "buffers",
                "delivery",
                "stacks",
                "watch",
                "starting",
            ),
        ),
        Room(
            "loader",
            (
                "known",
                "budget",
                "screen",
                "choices",
                "fitting",
                "plan",
                "tuned",
                "failures",
                "ledger",
                "batches",
                "elsewhere",
                "at_exit",
                "crew",
                "pieces",
                "spare",
                "thread_copies",
                "parts",
                "samples",
                "probe",
                "heap",
                "accounts",
                "tree",
                "facts",
                "flight",
                "guard",
                "seen",
                "threads",
                "messages",
                "endings",
                "processes",
                "in_process",
                "stream",
                "sampled",
                "rebuilt",
                "ranking",
                "replay",
                "conversion",
                "ahead",
                "device",
                "running",
                "planned",
                "planning",
                "build",
                "optimized",
                "splits",
            ),
        ),
    ),
    4: (
        Room(
            "diagnose",
            (
                "utilisation",
                "stalls",
                "containers",
                "graph",
                "sizes",
                "prices",
                "signs",
                "fixes",
                "hazards",
                "audit",
                "pickles",
                "target",
                "examine",
                "isolated",
                "loading",
                "frames",
                "profile",
                "transfer",
                "child",
                "trial",
                "telling",
                "verdict",
                "bench",
                "comparing",
                "race",
                "tuned_report",
                "plots",
                "tune",
                "report",
                "html",
                "growth",
                "doctor",
            ),
        ),
    ),
    5: (
        Room("testing", ("values", "causes", "whole", "stream")),
        Room(
            "cli",
            (
                "text",
                "values",
                "packing_plan",
                "packing_options",
                "packing_summary",
                "pack",
                "inspect",
                "shards",
                "machine",
                "measure",
                "diagnose",
            ),
        ),
    ),
    6: (Room("__main__"),),
}

# Rooms that never meet: all they share is the format, or what is below them.
STRANGERS = (
    ("ingest", "loader"),
    ("ingest", "datasets"),
    ("doors", "loader"),
    ("doors", "datasets"),
    ("ingest.images", "ingest.volumes"),
    ("ingest.images", "ingest.slides"),
    ("ingest.volumes", "ingest.slides"),
    ("ingest.exports", "ingest.images"),
    ("ingest.exports", "ingest.volumes"),
    ("ingest.exports", "ingest.slides"),
    ("ingest.exports", "ingest.pack"),
)

# Rooms whose modules may be imported late, inside functions.
LAZY_ROOMS = {"", "cli"}

# The rooms that know torch. Packing and reading a store never load it.
TORCH_ROOMS = {"datasets", "generators", "workers", "loader", "diagnose", "testing"}

# What only the room ``handles`` knows about, and the rooms with a reason to be excepted.
PROCESS_NAMES = {"register_at_fork", "__getstate__", "getpid"}
PROCESS_ROOMS: dict[str, str] = {"handles": "the place for it"}

BANNED_STEMS = {"base", "common", "helper", "helpers", "misc", "util", "utils"}

CEILING = 450
TARGET = 350

PACKAGE = Path(__file__).parents[1] / "sharedds"


@dataclass(frozen=True, slots=True)
class Module:
    """A source file: its dotted name below the package, and where it is."""

    name: str
    path: Path

    @property
    def room(self) -> str:
        """The first part of the name; empty for the package's own ``__init__``."""
        return self.name.partition(".")[0]

    @property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))


def find_modules() -> dict[str, Module]:
    """Return every source file of the package by its name; the root is the empty name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


MODULES = find_modules()
ALL = list(MODULES.values())
INSIDE = [module for module in ALL if module.name]
IMPORTABLE = [module for module in ALL if module.name != "__main__"]
UNAWARE = [module for module in ALL if module.room not in PROCESS_ROOMS]
TORCHLESS = [module for module in ALL if module.room not in TORCH_ROOMS]


def order_of_the_house() -> list[str]:
    """Return the names of all modules of the table, from low to high."""
    return [name for floor in sorted(FLOORS) for room in FLOORS[floor] for name in order_of(room)]


def order_of(room: Room, inside: str = "") -> Iterator[str]:
    """Yield the names of a room's modules, then its own; those of a room inside it come whole."""
    own = f"{inside}{room.name}"
    for module in room.modules:
        if isinstance(module, Room):
            yield from order_of(module, f"{own}.")
        else:
            yield f"{own}.{module}"
    yield own


ORDER = {name: position for position, name in enumerate(order_of_the_house())}


@dataclass(frozen=True, slots=True)
class Import:
    """One import of something of this package: the module it leads to, the line, how deep."""

    target: str
    line: int
    in_function: bool


def imports_of(module: Module) -> Iterator[Import]:
    """Yield every import of this package in a module, those for type checking included."""
    stack: list[tuple[ast.AST, bool]] = [(module.tree, False)]
    while stack:
        node, deep = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "sharedds" or alias.name.startswith("sharedds."):
                    yield Import(alias.name[9:], node.lineno, deep)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield Import("." * node.level + (node.module or ""), node.lineno, deep)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if source == "sharedds" or source.startswith("sharedds."):
                for alias in node.names:
                    deeper = f"{source[9:]}.{alias.name}".lstrip(".")
                    target = deeper if deeper in MODULES else source[9:]
                    yield Import(target, node.lineno, deep)
        deep = deep or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        stack.extend((child, deep) for child in ast.iter_child_nodes(node))


def are_strangers(one: str, other: str) -> bool:
    """Return whether two modules are in rooms that never meet, however deep inside."""
    return any(
        (is_within(one, first) and is_within(other, second))
        or (is_within(one, second) and is_within(other, first))
        for first, second in STRANGERS
    )


def is_within(name: str, room: str) -> bool:
    """Return whether a module is this room, or in it."""
    return name == room or name.startswith(f"{room}.")


def refusal(module: Module, found: Import) -> str | None:
    """Return why this import is not allowed, or ``None``."""
    target = found.target
    if not target:
        return "imports the package root; import from the module that defines the name"
    if target.startswith("."):
        return "is a relative import; write the full name"
    if target not in ORDER:
        return f"imports sharedds.{target}, which the table does not know"
    if module.name and ORDER[target] >= ORDER[module.name]:
        return f"imports sharedds.{target}, which is above it or to its right"
    if are_strangers(module.name, target):
        return f"imports sharedds.{target}; these two rooms never meet"
    if found.in_function and module.room not in LAZY_ROOMS:
        return f"imports sharedds.{target} inside a function"
    return None


def names(modules: list[Module]) -> list[str]:
    """Return test ids for modules."""
    return [module.name or "sharedds" for module in modules]


def test_every_module_has_a_place_in_the_table() -> None:
    """A new module is put on a floor before anything imports it."""
    homeless = sorted(module.name for module in INSIDE if module.name not in ORDER)
    assert not homeless, f"give each a place in FLOORS of {Path(__file__).name}: {homeless}"


def test_the_table_names_only_what_exists() -> None:
    """A module that is gone leaves the table."""
    gone = sorted(name for name in ORDER if name not in MODULES)
    assert not gone, f"take these out of FLOORS of {Path(__file__).name}: {gone}"


@pytest.mark.parametrize("module", ALL, ids=names(ALL))
def test_imports_go_down_or_left(module: Module) -> None:
    """No module imports from above, from its right, from a stranger, or late."""
    if module.name and module.name not in ORDER:
        pytest.fail(f"{module.name} has no place in FLOORS")
    wrong = [
        f"{module.path.relative_to(PACKAGE.parent)}:{found.line} {reason}"
        for found in imports_of(module)
        if (reason := refusal(module, found))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("room", "source", "reason"),
    [
        ("memory", "from sharedds.store import Store", "above it"),
        ("store.writer", "from sharedds.store.reader import Store", "to its right"),
        ("store.writer", "from sharedds.store import reader", "to its right"),
        ("store.writer", "import sharedds.store", "above it"),
        ("loader.plan", "from sharedds.ingest import pack", "never meet"),
        ("ingest.slides.scan", "from sharedds.ingest.volumes.scan import Found", "never meet"),
        ("ingest.slides.scan", "from sharedds.ingest import volumes", "never meet"),
        ("ingest.exports", "from sharedds.ingest.images import pack", "never meet"),
        ("ingest.report", "from sharedds.ingest.images.job import Job", "to its right"),
        ("ingest.volumes.pack", "from sharedds.ingest.pack import pack", "to its right"),
        ("ingest.volumes.pack", "from sharedds.ingest import pack", "to its right"),
        ("ingest.volumes.pack", "from sharedds.ingest.volumes import pack_volumes", "above it"),
        ("datasets", "import sharedds", "package root"),
        ("datasets", "from sharedds import Store", "package root"),
        ("datasets", "from .store import Store", "relative"),
        ("datasets", "def f():\n    from sharedds.store import Store", "inside a function"),
        ("datasets", "if X:\n    from sharedds.loader import build_loader", "above it"),
        ("datasets", "from sharedds.nowhere import x", "does not know"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, room: str, source: str, reason: str) -> None:
    """The rule above can fail, in each of its ways."""
    path = tmp_path / "module.py"
    path.write_text(source)
    module = Module(room, path)
    reasons = [refusal(module, found) for found in imports_of(module)]
    assert len(reasons) == 1
    assert reason in str(reasons[0])


@pytest.mark.parametrize("module", INSIDE, ids=names(INSIDE))
def test_no_file_is_long(module: Module) -> None:
    """A file stays where a reader can hold it in mind."""
    lines = len(module.path.read_text(encoding="utf-8").splitlines())
    if lines > TARGET:
        print(f"{module.name}: {lines} lines, over the target of {TARGET}")
    assert lines <= CEILING, f"{module.name} has {lines} lines; split it by what it knows"


@pytest.mark.parametrize("module", IMPORTABLE, ids=names(IMPORTABLE))
def test_public_names_are_listed_and_sorted(module: Module) -> None:
    """Each module says what is public: constants, classes, then the rest, each in order."""
    listed = None
    for node in module.tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            listed = ast.literal_eval(node.value)
    assert listed is not None, f"{module.name} has no __all__"
    assert listed == sorted(set(listed), key=lambda name: (kind_of_name(name), name))


@pytest.mark.parametrize("module", INSIDE, ids=names(INSIDE))
def test_no_file_has_a_name_that_says_nothing(module: Module) -> None:
    """A module is called after what it knows."""
    assert not BANNED_STEMS & set(module.name.split("."))


def names_in(tree: ast.AST) -> Iterator[str]:
    """Names that code uses, defines or imports, also in the expressions of formatted strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.alias):
            yield node.name


@pytest.mark.parametrize("module", UNAWARE, ids=names(UNAWARE))
def test_only_handles_knows_processes(module: Module) -> None:
    """Fork, pickle state and process numbers are handled in one place."""
    used = set(names_in(module.tree)) & PROCESS_NAMES
    assert not used, f"{module.name} uses {sorted(used)}; handles is the place for it"


@pytest.mark.parametrize("module", TORCHLESS, ids=names(TORCHLESS))
def test_only_datasets_and_loader_know_torch(module: Module) -> None:
    """A room that packs or reads stores works without loading torch."""
    for node in ast.walk(module.tree):
        imported = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        assert not any(re.match(r"torch\b", name) for name in imported), f"{module.name}: torch"


def kind_of_name(name: str) -> int:
    """Return 0 for ``CONSTANTS``, 1 for ``Classes`` and 2 for the rest, as ruff sorts them."""
    return 0 if name.isupper() else 1 if name[0].isupper() else 2


@functools.cache
def loaded_by(code: str) -> frozenset[str]:
    """Run ``code`` in a fresh process and return the top-level packages it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('', *sys.modules, sep='\\n@')"],
        capture_output=True,
        text=True,
        check=True,
        env=unmeasured(),
    )
    return frozenset(re.findall(r"^@([^.\n]+)", done.stdout, re.MULTILINE))


HEAVY = {"torch", "lmdb", "numpy", "PIL", "numcodecs", "simplejpeg", "psutil", "rich"}


@pytest.mark.parametrize(
    "code",
    ["import sharedds", "from sharedds.cli import main; main(['--help'])"],
    ids=["import", "help"],
)
def test_the_front_door_loads_nothing_heavy(code: str) -> None:
    """Importing the package and asking for help load neither torch, LMDB nor NumPy."""
    loaded = loaded_by(code)
    assert "sharedds" in loaded
    assert not HEAVY & loaded


@pytest.mark.parametrize("room", ["store", "folder", "ingest", "cli.pack", "cli.inspect"])
def test_packing_never_loads_torch(room: str) -> None:
    """What ``sharedds pack`` runs starts without the seconds that torch takes."""
    assert "torch" in loaded_by("import torch")
    assert "torch" not in loaded_by(f"import sharedds.{room}")


def cpu_seconds(*arguments: str) -> float:
    """Return the least CPU time of several runs of this interpreter with ``arguments``."""
    figures = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            env=unmeasured(),
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        figures.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(figures)


def test_help_is_quick() -> None:
    """``sharedds --help`` costs less than 0.3 s of CPU beyond the bare interpreter."""
    bare = cpu_seconds("-c", "pass")
    assert cpu_seconds("-m", "sharedds", "--help") - bare < 0.3
