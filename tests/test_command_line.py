"""The command line as a whole: help, exit codes, and one clean message for each failure."""

import subprocess
import sys

import click
import pytest

from sharedds import cli
from sharedds.cli import VERBS, Verb, main
from sharedds.errors import StoreNotFoundError

TEXT = "nowhere.lmdb: no such store; pass the path of one"


@click.command()
def lost() -> None:
    """Fail as a public function does."""
    raise StoreNotFoundError(TEXT, path="nowhere.lmdb")


@click.command()
def stopped() -> None:
    """Fail as Ctrl-C does."""
    raise KeyboardInterrupt


@click.command()
def broken() -> None:
    """Fail as a mistake in the code does."""
    raise ZeroDivisionError


@click.command()
@click.pass_context
def found(ctx: click.Context) -> None:
    """Say that something was found wrong."""
    ctx.exit(1)


@click.command()
@click.argument("path")
def fine(path: str) -> None:
    """Succeed."""
    click.echo(path)


@pytest.fixture
def _verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer the commands above instead of the real ones."""
    monkeypatch.setattr(
        cli,
        "VERBS",
        {
            name: Verb(f"{__name__}:{name}", "One line.")
            for name in ("lost", "stopped", "broken", "found", "fine")
        },
    )


def test_help_lists_every_verb_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Help goes to standard output and shows the whole table."""
    assert main(["--help"]) == 0
    shown = capsys.readouterr()
    for name, verb in VERBS.items():
        assert f"{name} " in shown.out
        assert verb.help in " ".join(shown.out.split())
    assert shown.err == ""


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_has_the_name_and_line_of_the_table(name: str) -> None:
    """The table is what is shown, so it must say what the commands say."""
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").splitlines()[0] == VERBS[name].help


@pytest.mark.usefixtures("_verbs")
def test_a_verb_that_works_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    """What a command prints is all that is printed."""
    assert main(["fine", "out.lmdb"]) == 0
    assert capsys.readouterr() == ("out.lmdb\n", "")


@pytest.mark.usefixtures("_verbs")
def test_a_failure_is_one_message_on_stderr_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, nothing on standard output."""
    assert main(["lost"]) == 1
    assert capsys.readouterr() == ("", f"Error: {TEXT}\n")


@pytest.mark.usefixtures("_verbs")
def test_a_verb_chooses_its_exit_code() -> None:
    """A check that found something wrong ends with 1 and says so itself."""
    assert main(["found"]) == 1


@pytest.mark.usefixtures("_verbs")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nope"], "No such command 'nope'"),
        (["fine"], "Missing argument 'PATH'"),
        (["fine", "a", "--nope"], "No such option '--nope'"),
        (["--nope"], "No such option '--nope'"),
    ],
)
def test_a_command_not_understood_exits_with_2(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the word, and nothing is run."""
    assert main(words) == 2
    shown = capsys.readouterr()
    assert reason in shown.err
    assert shown.out == ""


@pytest.mark.usefixtures("_verbs")
def test_an_interrupt_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C is no error and shows no traceback."""
    assert main(["stopped"]) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


@pytest.mark.usefixtures("_verbs")
def test_a_mistake_in_the_code_keeps_its_traceback() -> None:
    """Only errors that are meant for the user are made short."""
    with pytest.raises(ZeroDivisionError):
        main(["broken"])


def test_the_module_runs_as_a_program() -> None:
    """``python -m sharedds`` passes the exit code on to the shell."""
    good = subprocess.run([sys.executable, "-m", "sharedds", "--help"], capture_output=True)
    bad = subprocess.run([sys.executable, "-m", "sharedds", "nope"], capture_output=True)
    assert good.returncode == 0
    assert good.stdout.startswith(b"Usage: sharedds ")
    assert bad.returncode == 2
    assert b"Traceback" not in bad.stderr


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` prints the name and the number."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sharedds, version ")
