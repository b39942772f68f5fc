"""The command ``tcexport``: finds the subcommand, and turns every failure into text and a status.

Exit statuses: 0 done · 1 the export was refused · 2 what was typed does not fit · 3 the file cannot
be trusted or run here · 4 a call outside the contract · 5 a fault of ours · 130
interrupted · 143 terminated.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from ..artifacts.errors import Diagnostic, TcexportError, UsageError
from ..artifacts.names import suggestions
from .failures import FORMS, Place, print_failure

INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143
INTERNAL = 5

COMMANDS = {
    "export": "export SOURCE to one .tcpkg file",
    "check": "what an export would refuse and report; compiles nothing",
    "inspect": "what a bundle takes, guards, gives and holds",
    "run": "run a bundle once",
    "explain": "what an error code means, and what to do",
    "bench": "time a bundle, alone or beside other runtimes",
    "advise": "which variants of a bundle pay, measured",
    "diff": "what differs between two bundles",
    "keygen": "make an Ed25519 key to sign with",
    "sign": "sign a bundle",
    "verify-signature": "verify that a trusted key signed a bundle",
    "weights": "change the weights of a bundle, or where they lie",
}
"""The commands, each with what it does: to list them, none of their modules is imported."""


def _module_of(command: str) -> str:
    return f"{__package__}.{command.replace('-', '_')}"


class Commands(click.Group):
    """Subcommands that are imported when they are asked for. A first argument that is none of them
    is a source, and means ``export``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(_module_of(name)).command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*COMMANDS, "-h", "--help", "--version"):
            self._refuse_misspelt(args[0])
            args = ["export", *args]
        return super().parse_args(ctx, args or ["--help"])

    def _refuse_misspelt(self, word: str) -> None:
        close = suggestions(word, COMMANDS)
        if re.fullmatch(r"\w+", word) and close and not Path(word).exists():
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"there is no command {word}",
                    notes=(f"commands: {', '.join(COMMANDS)}",),
                    tries=(f"tcexport {close[0]}",),
                )
            )


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"tcexport {version('tcexport')}")
        ctx.exit()


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`tcexport COMMAND --help` shows the options of a command.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
def tcexport() -> None:
    """Ship a PyTorch model as one file that runs without PyTorch.

    \b
      tcexport model.py --dynamic seq              → model.tcpkg
      tcexport model.py --dynamic seq=1..1024,batch=1..16 -o m.tcpkg
      tcexport inspect m.tcpkg
      tcexport run m.tcpkg --input input_ids=ids.npy -o out.npz

    A first argument that is no command is a source, and means `export`.

    \b
    Exit statuses: 0 done, 1 export refused, 2 usage, 3 bad bundle,
    4 call outside the contract, 5 internal error, 130 interrupted.
    """


def run_command(args: Sequence[str]) -> int:
    """Run a command line (without the program's name); returns the exit status."""
    form, place = _asked_form(args), Place()
    try:
        with tcexport.make_context("tcexport", list(args), obj=place) as ctx:
            tcexport.invoke(ctx)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        usage = _usage_error(error)
        print_failure(usage.diagnostics, form, place)
        return usage.exit_status
    except TcexportError as error:
        print_failure(error.diagnostics, form, place)
        if _asks_for_traceback(args) and error.__cause__ is not None:
            _print_traceback(error.__cause__)
        return error.exit_status
    except (KeyboardInterrupt, click.Abort):
        print("interrupted: nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        diagnostic = Diagnostic(
            "TC590",
            f"{type(error).__name__}: {error}",
            notes=(f"in {last.name}, {last.filename}:{last.lineno}", "this is a bug in tcexport"),
            tries=("again with -v for the traceback",) if _may_ask_for_traceback(args) else (),
        )
        print_failure((diagnostic,), form, place)
        if _asks_for_traceback(args):
            _print_traceback(error)
        return INTERNAL


def main() -> NoReturn:
    """The entry point of the command."""
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(run_command(sys.argv[1:]))


def _terminated(signum: int, frame: Any) -> NoReturn:
    """A polite kill ends like an interrupt: drafts are removed, and so are the compilers."""
    raise SystemExit(TERMINATED)


def _asked_form(args: Sequence[str]) -> str:
    # Read from the arguments themselves, for the failure may be that they cannot be parsed.
    typed = {each.removeprefix("--format=") for each in args if each.startswith("--format=")}
    typed |= {form for option, form in itertools.pairwise(args) if option == "--format"}
    return next((form for form in FORMS if form in typed), "text")


def _asks_for_traceback(args: Sequence[str]) -> bool:
    return "-v" in args or "--verbose" in args


def _may_ask_for_traceback(args: Sequence[str]) -> bool:
    """Whether the command has an option for it that is not given yet."""
    name = args[0] if args and args[0] in COMMANDS else "export"
    command = getattr(sys.modules.get(_module_of(name)), "command", None)
    if command is None or _asks_for_traceback(args):
        return False
    return any("-v" in parameter.opts for parameter in command.params)


def _print_traceback(error: BaseException) -> None:
    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)


def _usage_error(error: click.ClickException) -> UsageError:
    """One of click's errors in our form."""
    ctx: Any = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "tcexport"
    message = error.format_message().rstrip(".")
    tries: tuple[str, ...] = (f"{path} --help",)
    if isinstance(error, click.NoSuchOption):
        params = ctx.command.params if ctx is not None else []
        options = [name.lstrip("-") for each in params for name in each.opts]
        close = suggestions(error.option_name.lstrip("-"), options)
        message = f"{path} has no option {error.option_name}"
        tries = (*(f"--{name}" for name in close[:1]), *tries)
    return UsageError(Diagnostic("TC008", message, tries=tries))
