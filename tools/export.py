"""``tcexport export``: a source → one .tcpkg file."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from .failures import Place, machine_text, print_diagnostics
from .progress import Progress
from .sources import Asked, finding_options, load, source_arguments
from .tables import dim_lines, size_text
from .variant_options import AskedVariants, target_option, variant_options

if TYPE_CHECKING:
    from ..exporter.export import Report
    from ..exporter.verify import Checked
    from ..exporter.worth import Raced


@click.command()
@source_arguments
@target_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write; by default the source's name with .tcpkg, in the current folder.",
)
@click.option(
    "--weights",
    type=click.Choice(["inside", "external"]),
    default="inside",
    help="`external` keeps them in a file beside the bundle, named by its digest.",
)
@click.option(
    "--emit-onnx",
    is_flag=True,
    help="Put an ONNX copy of the model beside the bundle, with its dims by name, compared with "
    "ONNX Runtime at several sizes.",
)
@variant_options
@finding_options
@click.pass_context
def command(
    context: click.Context,
    asked: Asked,
    wanted: AskedVariants,
    targets: tuple[str, ...],
    output: Path | None,
    weights: Literal["inside", "external"],
    emit_onnx: bool,
    quiet: bool,
    verbose: bool,
    form: str,
) -> None:
    """Export SOURCE to one .tcpkg file.

    SOURCE is a model.py with a module-level `model` (an nn.Module, or a class or function that
    makes one), `example_inputs` (a tuple, or a dict of keyword arguments) and, optionally, `axes`
    ({"input_ids": ("batch", "seq")}); or model.py:ClassName; or a saved .pt2 program; or an .onnx
    file, whose named dims are dynamic.

    \b
      tcexport model.py --dynamic seq
      tcexport model.py --dynamic seq=1..1024 --dynamic batch=1..16 -o m.tcpkg
      tcexport model.py --dynamic seq,batch --specialize seq=128,256 --specialize batch=1
      tcexport model.py:MyNet --input 'x=float32[batch=4,16]' --dynamic batch
      tcexport model.onnx --dynamic seq=1..512
    """
    out = output or asked.bundle()
    # What the model prints is no result: stdout holds the path or the JSON alone.
    with Progress(quiet) as progress, redirect_stdout(sys.stderr):
        read = wanted.typed(targets)
        levels = asked.levels()
        source, dynamic = load(asked, progress)
        dynamic, variants = wanted.of_source(source, dynamic, read)
        from ..exporter.export import export_source

        report = export_source(
            source,
            dynamic=dynamic,
            targets=targets,
            out=out,
            narrow=asked.narrow,
            levels=levels,
            progress=progress,
            variants=variants,
            weights=weights,
            emit_onnx=emit_onnx,
        )
    if form == "json":
        click.echo(json.dumps(_as_json(report), indent=1))
        return
    if form != "text":
        click.echo(machine_text(report.notes, form, context.ensure_object(Place).file))
        return
    if not quiet:
        _print_summary(report, verbose)
    click.echo(report.path)


def _print_summary(report: Report, verbose: bool) -> None:
    print_diagnostics(report.notes)
    lines = dim_lines(report.dims)
    if report.variants:
        lines.append(f"variants, in the order of trial: {'; '.join(report.variants)}")
    made = [each for each in report.verified if not each.skipped]
    if verbose:
        lines += [
            f"{each.target}, {_point(each)}: error {each.error:.1e} against {each.against}"
            for each in made
        ]
    else:
        for against in dict.fromkeys(each.against for each in made):
            compared = [each for each in made if each.against == against and not each.undecided]
            if not compared:
                continue
            worst = max(each.error for each in compared)
            within = f"within {worst:.1e}" if worst else "exactly"
            points = dict.fromkeys(_point(each) for each in compared)
            lines.append(f"equals {against} {within} at {'; '.join(points)}")
    unsure = [each for each in made if each.undecided]
    if unsure:
        places = "; ".join(dict.fromkeys(_point(each) for each in unsure))
        lines.append(
            f"up to {max(each.error for each in unsure):.1e} from eager at {places}: there the model "
            "rounds numbers to integers that lie between two, and eager's own answers differ as much"
        )
    for each in report.verified:
        if each.skipped:
            what = _point(each) if each.sizes else f"the binary for {each.target}"
            lines.append(f"{what}: not compared with {each.against}, {each.skipped}")
    lines.append(
        f"{size_text(report.size)} for {', '.join(report.targets)}, "
        f"of which weights {size_text(report.weights_size)}"
    )
    if report.onnx:
        lines.append(f"an ONNX copy in {report.onnx}")
    if verbose:
        lines += [_race(each) for each in report.races]
    for line in [*lines, *report.advice.lines]:
        print(line, file=sys.stderr)


def _race(race: Raced) -> str:
    at = ", ".join(f"{name}={size}" for name, size in race.sizes.items())
    if race.ratio is None:
        return f"{race.variant} ({at}): not measured, a call takes too long"
    return (
        f"{race.variant} ({at}): {race.ratio.low:.3f} to {race.ratio.high:.3f} of the time of "
        f"{race.against}"
    )


def _point(checked: Checked) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in checked.sizes.items())
    what = f"{checked.variant}: {checked.why}" if checked.variant else checked.why
    return f"{what} ({sizes})" if sizes else what


def _as_json(report: Report) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(report)
    return data
