"""``tcexport check``: what an export would say, or whether a bundle serves what is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..artifacts.errors import Diagnostic, ExportError, UsageError
from .failures import Place, as_data, machine_text, print_diagnostics
from .progress import Progress
from .sources import Asked, finding_options, load, source_arguments
from .tables import contract_lines, op_lines, origin_text, value_rows
from .variant_options import AskedVariants, target_option, variant_options

if TYPE_CHECKING:
    from ..artifacts.contract import Contract
    from ..exporter.check import Findings
    from ..runtime.coverage import Coverage

NOT_SERVED = 4


@click.command()
@source_arguments
@click.option(
    "--serves",
    multiple=True,
    metavar="NAME=LO..HI[:STEP]",
    help="Sizes that a bundle has to serve. Repeatable, or several with commas.",
)
@click.option("--graph", is_flag=True, help="Show the traced graph, with dims and source lines.")
@target_option
@variant_options
@finding_options
@click.pass_context
def command(
    context: click.Context,
    asked: Asked,
    wanted: AskedVariants,
    targets: tuple[str, ...],
    serves: Sequence[str],
    graph: bool,
    quiet: bool,
    verbose: bool,
    form: str,
) -> None:
    """Say all that an export of SOURCE would refuse and report, without compiling: the contract, and
    which ops can be lowered. Or, where SOURCE is a bundle, prove that it serves the sizes given.

    \b
      tcexport check model.py --dynamic seq
      tcexport check model.py --dynamic seq --format github --error TC106
      tcexport check model.py --dynamic batch --cover seq=1..4096 --target cuda:sm_80
      tcexport check m.tcpkg --serves seq=1..4096 --serves batch=1..8

    SOURCE and its options are those of `tcexport export`. The exit status is 1 where the export would
    be refused, 0 where there are notes and warnings only. With --serves it is 4 where some of the
    sizes are not served; what cannot be decided counts as that.
    """
    if asked.spec.endswith(".tcpkg"):
        typed = context.get_parameter_source("targets") is ParameterSource.COMMANDLINE
        about_code = typed or wanted.given
        _check_bundle(asked, serves, form, of_a_trace=graph or about_code)
        return
    if serves:
        raise UsageError(
            Diagnostic(
                "TC008",
                "--serves asks a bundle, and the source is none",
                tries=(f"tcexport check {asked.spec} --dynamic {serves[0]}",),
            )
        )
    with Progress(quiet) as progress, redirect_stdout(sys.stderr):
        levels = asked.levels()
        read = wanted.typed(targets)
        source, dynamic = load(asked, progress)
        dynamic, variants = wanted.of_source(source, dynamic, read)
        from ..exporter.check import check_source

        found = check_source(
            source,
            dynamic=dynamic,
            targets=targets,
            narrow=asked.narrow,
            levels=levels,
            variants=variants,
            graph=graph,
            bench=asked.bundle().with_suffix(".bench.json"),
            progress=progress,
        )
    if form == "json":
        click.echo(json.dumps(_as_json(found), indent=1))
    elif form == "text":
        print_diagnostics((*found.errors, *found.notes))
        for line in lines(found):
            click.echo(line)
    else:
        place = context.ensure_object(Place)
        click.echo(machine_text((*found.errors, *found.notes), form, place.file))
    if found.errors:
        context.exit(ExportError.exit_status)


def lines(found: Findings) -> list[str]:
    """What is told on stdout."""
    if found.contract is None:
        return []
    # Where the compiler's process failed, there is no table, which is not to say that there is no op.
    ops = op_lines(found.ops) if found.ops or not found.errors else []
    graph = [] if found.graph is None else found.graph.splitlines()
    advice = [] if found.advice is None else found.advice.lines
    order = "; ".join(found.variants)
    variants = [f"variants, in the order of trial: {order}"] if order else []
    return [*contract_lines(found.contract), *variants, *ops, *graph, *advice]


def _as_json(found: Findings) -> dict[str, Any]:
    """The findings; what is refused stands where that of every command does."""
    import msgspec

    if found.contract is None:
        return {"error": {"diagnostics": as_data((*found.errors, *found.notes))}}
    data: dict[str, Any] = msgspec.to_builtins(found)
    errors = data.pop("errors")
    return {"error": {"diagnostics": errors}, **data} if errors else data


# --- bundles --------------------------------------------------------------------------------------


def _check_bundle(asked: Asked, serves: Sequence[str], form: str, *, of_a_trace: bool) -> None:
    from ..artifacts.container import open_bundle
    from ..exporter.options import parse_dynamic
    from ..runtime.coverage import coverage, parts_of

    options = (asked.inputs, asked.axes, asked.dynamic, asked.error, asked.allow)
    if any(options) or asked.narrow or asked.train or of_a_trace:
        raise UsageError(
            Diagnostic("TC008", f"{asked.spec} is a bundle: it takes --serves, and is not traced")
        )
    if form not in ("text", "json"):
        raise UsageError(
            Diagnostic("TC008", f"--format {form} is for findings in a source, not for a bundle")
        )
    wanted = {}
    for name, span in parse_dynamic(serves, "--serves").items():
        if span is None:
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"--serves {name} says no sizes",
                    tries=(f"--serves {name}=1..512",),
                )
            )
        wanted[name] = (span.lo, span.hi, span.step)
    with open_bundle(Path(asked.spec)) as opened:
        contract, parts = opened.manifest.contract, parts_of(opened.manifest)
    if not wanted:
        sized = [dim for dim in contract.dims if not dim.open_below]
        dims = ",".join(f"{dim.name}={dim.span()}" for dim in sized)
        raise UsageError(
            Diagnostic(
                "TC008",
                f"{asked.spec} is a bundle: say which sizes it has to serve",
                tries=(f"tcexport check {asked.spec} --serves {dims}",) if dims else (),
            )
        )
    found = coverage(contract, wanted, parts)
    if form == "json":
        click.echo(json.dumps(_coverage_json(asked.spec, found), indent=1))
    else:
        for line in _coverage_lines(contract, found):
            click.echo(line)
    if not found.served:
        click.get_current_context().exit(NOT_SERVED)


def _coverage_lines(contract: Contract, found: Coverage) -> list[str]:
    lines = []
    for each in found.conditions:
        lines.append(f"{each.status}: {each.needs}   ({origin_text(each.origin)})")
        if each.counterexample is not None:
            lines.append(f"  fails at {_point(each.counterexample)}{_missing(each.share)}")
    for needs, origin in value_rows(contract):
        lines.append(f"checked at each call: {needs}   ({origin})")
    asked = ", ".join(f"{name}={span}" for name, span in found.asked.items())
    if found.served:
        lines.append(f"served: {asked}")
    else:
        lines.append(f"not served: {asked}{_missing(found.share)}")
    return lines


def _point(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _missing(share: float | None) -> str:
    return "" if share is None else f" ({100 * (1 - share):.3g} % of the sizes are refused)"


def _coverage_json(path: str, found: Coverage) -> dict[str, Any]:
    return {
        "path": path,
        "serves": {name: str(span) for name, span in found.asked.items()},
        "served": found.served,
        "share": found.share,
        "conditions": [
            {
                "needs": each.needs,
                "from": origin_text(each.origin),
                "status": each.status,
                "counterexample": each.counterexample,
                "share": each.share,
            }
            for each in found.conditions
        ],
    }
