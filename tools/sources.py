"""The arguments that name a source, shared by the subcommands that trace one."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .failures import FORMS, Place
from .progress import Report

if TYPE_CHECKING:
    from ..artifacts.levels import Levels
    from ..exporter.options import DimRequest
    from ..exporter.source import Source

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Asked:
    """What the command line says of the source and its dims, not looked into yet."""

    spec: str
    inputs: tuple[str, ...]
    axes: tuple[str, ...]
    dynamic: tuple[str, ...]
    narrow: bool
    train: bool
    error: tuple[str, ...]
    allow: tuple[str, ...]

    def bundle(self) -> Path:
        """Where an export writes by default: model.py → model.tcpkg, model.py:MyNet → MyNet.tcpkg."""
        path, colon, name = self.spec.rpartition(":")
        named = colon and path.endswith(".py") and name
        return Path(f"{name if named else Path(self.spec).stem}.tcpkg")

    def levels(self) -> Levels:
        """``--error`` and ``--allow``, over what the project says.

        Raises:
            UsageError: TC006, TC008, TC013.
        """
        from .project import levels_for

        return levels_for(Path(self.spec), self.error, self.allow)


def source_arguments(function: F) -> F:
    """Add the source and the options about it; the function gets them as ``asked``."""

    def take(
        *,
        source: str,
        inputs: tuple[str, ...],
        axes: tuple[str, ...],
        dynamic: tuple[str, ...],
        narrow: bool,
        train: bool,
        error: tuple[str, ...],
        allow: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        click.get_current_context().ensure_object(Place).folder = Path(source).parent
        asked = Asked(source, inputs, axes, dynamic, narrow, train, error, allow)
        return function(asked=asked, **rest)

    decorated: Any = functools.update_wrapper(take, function)
    for decorate in reversed(_ARGUMENTS):
        decorated = decorate(decorated)
    result: F = decorated
    return result


_ARGUMENTS = (
    click.argument("source", metavar="SOURCE"),
    click.option(
        "--dynamic",
        multiple=True,
        metavar="NAME[=LO..HI[:STEP]]",
        help="Serve this dim at any size, or at every size of the range: a range is a promise. "
        "Repeatable, or several with commas. `auto`: what several example inputs differ in.",
    ),
    click.option(
        "--axes",
        multiple=True,
        metavar="INPUT=NAME,…",
        help="Names for the axes of an input, `_` for a fixed one: `--axes input_ids=batch,seq`. "
        "Names may be expressions (`2*n`).",
    ),
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="INPUT=VALUE",
        help="An example input: `'ids=int64[batch=4,seq=128]<30000'` (integers are drawn below the "
        "bound, or are 0 and 1), or a plain value: `k=3`, `flag=true`, `n=none`, `\"s='abc'\"`.",
    ),
    click.option(
        "--narrow",
        is_flag=True,
        help="Take the part of each range that can be proved, instead of refusing.",
    ),
    click.option("--train", is_flag=True, help="Leave the model in the mode it is in: no eval()."),
    click.option(
        "--error",
        multiple=True,
        metavar="CODE",
        help="Refuse the export for a note or a warning, too. Repeatable, or several with commas; "
        "also `error = [...]` in [tool.tcexport] of the nearest pyproject.toml.",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="CODE",
        help="Do not tell a note. What refuses, and what may be another answer than the model's, "
        "cannot be silenced. Also `allow = [...]`, as above.",
    ),
)


def load(asked: Asked, report: Report) -> tuple[Source, dict[str, DimRequest | None]]:
    """Load the source and read ``--dynamic``: what was typed is held against what is there.

    Raises:
        UsageError: TC001 to TC008, TC011.
    """
    from ..exporter.extra import require_extra
    from ..exporter.options import parse_dynamic
    from ..lowering import compilers
    from ..lowering.imports import lasting_imports

    dynamic = parse_dynamic(asked.dynamic)
    require_extra()
    # Read where torch is loaded: its threads sleep between ops. By default they spin for milliseconds
    # after each, which at the sizes of an example takes more than what they compute.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    compilers.start()  # beside all that follows
    report("load the source", None)
    start = time.perf_counter()
    with lasting_imports():
        from ..exporter import outline  # noqa: F401  (and with it what follows)
        from ..exporter.auto import with_auto
        from ..exporter.axes import check_dynamic_names
        from ..exporter.source import load_source

    source = load_source(
        asked.spec, inputs=asked.inputs, axes=asked.axes, train=asked.train, dynamic=dynamic
    )
    source, dynamic = with_auto(source, dynamic)
    check_dynamic_names(dynamic, source.axes)
    report("load the source", time.perf_counter() - start)
    return source, dynamic


def _output_options(forms: Sequence[str]) -> tuple[Callable[[F], F], ...]:
    return (
        click.option("-q", "--quiet", is_flag=True, help="No progress and no summary."),
        click.option("-v", "--verbose", is_flag=True, help="Tracebacks of failures, and details."),
        click.option(
            "--format",
            "form",
            type=click.Choice(forms),
            default="text",
            help="The result, and any error, as text, or on stdout as JSON"
            + (
                "; all that is found as SARIF 2.1.0 or as annotations of GitHub Actions."
                if len(forms) > 2
                else "."
            ),
        ),
    )


def output_options(function: F) -> F:
    """Add ``-q``, ``-v`` and ``--format``."""
    for decorate in reversed(_output_options(FORMS[:2])):
        function = decorate(function)
    return function


def finding_options(function: F) -> F:
    """The same for what finds things in a source: with formats for machines that show them."""
    for decorate in reversed(_output_options(FORMS)):
        function = decorate(function)
    return function
