"""The command line: ``sharedds VERB ...``, one public function behind each verb.

Verbs are imported when they run. ``sharedds --help`` is answered from the table below alone, so it
loads neither torch nor LMDB.
"""

from __future__ import annotations

import errno
import importlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from sharedds.cli.text import complain, silence
from sharedds.errors import OptionError, SharedDSError

__all__ = ["VERBS", "LazyGroup", "Verb", "cli", "main"]

FAILED = 1
MISUSED = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line.

    Args:
        target: Where its command is, as ``"module:attribute"``.
        help: One line, shown by ``sharedds --help``.
    """

    target: str
    help: str


VERBS = {
    "pack": Verb(
        "sharedds.cli.pack:pack", "Pack the folder SOURCE, or another dataset, into the file OUT."
    ),
    "info": Verb(
        "sharedds.cli.inspect:info",
        "Show what is in STORE: schema, counts, classes, sizes, digest.",
    ),
    "verify": Verb(
        "sharedds.cli.inspect:verify",
        "Compare everything in STORE with its checksums.",
    ),
    "export": Verb(
        "sharedds.cli.pack:export",
        "Write STORE back to FOLDER: the stored bytes of each image under its name.",
    ),
    "merge": Verb(
        "sharedds.cli.shards:merge",
        "Copy all samples of STORE... into OUT: one file, or a folder of shards.",
    ),
    "split": Verb(
        "sharedds.cli.shards:split",
        "Copy STORE into several in the folder OUT: by count, column or group.",
    ),
    "append": Verb(
        "sharedds.cli.shards:append",
        "Append stores to the sharded STORE, as new shards.",
    ),
    "edit": Verb(
        "sharedds.cli.shards:edit",
        "Change labels, keys and other columns of the sharded STORE.",
    ),
    "bench": Verb(
        "sharedds.cli.measure:bench",
        "Measure the loader of TARGET alone, and tell what bounds it.",
    ),
    "tune": Verb(
        "sharedds.cli.measure:tune",
        'Find the fastest plan for TARGET here, and keep it for build_loader(plan="tuned").',
    ),
    "doctor": Verb(
        "sharedds.cli.diagnose:doctor",
        "Find what in TARGET costs workers memory or breaks in them.",
    ),
    "machine": Verb(
        "sharedds.cli.machine:machine",
        "Show what a process may use here, and what decided it.",
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed, in the order of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of one verb; ``None`` when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module, attribute = VERBS[cmd_name].target.split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sharedds", prog_name="sharedds")
def cli() -> None:
    """Memory-safe datasets for PyTorch: pack them once, map them everywhere."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 1: it failed, with one message on stderr. 2: the command was not understood, or its
    options do not fit. 130: interrupted with Ctrl-C.

    Args:
        args: The words after the program's name; those of this process by default.
    """
    words = None if args is None else list(args)
    try:
        result: Any = cli.main(words, prog_name="sharedds", standalone_mode=False)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        for line in shown.getvalue().splitlines():
            complain(line)
        return error.exit_code
    except SharedDSError as error:
        for line in f"Error: {error}".splitlines():
            complain(line)
        return MISUSED if isinstance(error, OptionError) else FAILED
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        complain(f"Error: {silence(sys.stdout, error)}")  # what click itself prints, as of --help
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        complain("Interrupted.")
        return INTERRUPTED
    return result if isinstance(result, int) else 0
