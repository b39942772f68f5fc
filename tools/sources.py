"""The arguments that name a source, shared by the subcommands that trace one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .progress import Report

if TYPE_CHECKING:
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
        **rest: Any,
    ) -> Any:
        return function(asked=Asked(source, inputs, axes, dynamic, narrow, train), **rest)

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
        "Repeatable, or several with commas.",
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
)


def load(asked: Asked, report: Report) -> tuple[Source, dict[str, DimRequest | None]]:
    """Load the source and read ``--dynamic``: what was typed is held against what is there.

    Raises:
        UsageError: TC001 to TC008, TC011.
    """
    from ..exporter.extra import require_extra
    from ..exporter.options import parse_dynamic

    dynamic = parse_dynamic(asked.dynamic)
    require_extra()
    report("load the source", None)
    start = time.perf_counter()
    from ..exporter.axes import check_dynamic_names
    from ..exporter.source import load_source

    source = load_source(asked.spec, inputs=asked.inputs, axes=asked.axes, train=asked.train)
    check_dynamic_names(dynamic, source.axes)
    report("load the source", time.perf_counter() - start)
    return source, dynamic


def _output_options() -> tuple[Callable[[F], F], ...]:
    return (
        click.option("-q", "--quiet", is_flag=True, help="No progress and no summary."),
        click.option("-v", "--verbose", is_flag=True, help="Tracebacks of failures, and details."),
        click.option(
            "--format",
            "form",
            type=click.Choice(["text", "json"]),
            default="text",
            help="The result, and any error, as text or as JSON on stdout.",
        ),
    )


def output_options(function: F) -> F:
    """Add ``-q``, ``-v`` and ``--format``."""
    for decorate in reversed(_output_options()):
        function = decorate(function)
    return function
