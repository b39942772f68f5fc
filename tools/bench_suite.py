"""The benchmark of this project: six models at several sizes, into docs/benchmarks.md.

``python -m tcexport.tools.bench_suite [NAME …]`` exports each model, times it beside every runtime
that is installed, and keeps the results in docs/benchmarks/ (JSON, and a plot); the page is written
from all results that are there. With ``--level`` the runtimes are held to an older processor's
instructions, and the results stand beside the others. It runs from a checkout.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from ..artifacts.container import open_bundle
from ..artifacts.names import suggestions
from .bench_level import LEVELS
from .bench_measure import measure
from .bench_names import RUNTIMES
from .bench_plot import svg
from .bench_report import heading, markdown_lines, markdown_sizes
from .bench_results import Results, as_data
from .bench_sizes import parse_sizes
from .progress import Progress

_ROOT = Path(__file__).parent.parent
_MODELS = {
    "text_encoder": "tests/models/text_encoder.py",
    "mlp": "tools/benchmarks/mlp.py",
    "resnet18": "tools/benchmarks/resnet18.py",
    "bert_small": "tools/benchmarks/bert_small.py",
    "decoder_block": "tools/benchmarks/decoder_block.py",
    "unet": "tools/benchmarks/unet.py",
}
# What other tools print, each with its heading and what is said of it.
_TEXTS = {
    "gemm_peak": ("Matrix products beside the peak of a core", ""),
    "small_calls": (
        "Small things",
        "One call of 4 rows on one thread, beside those of these that are installed "
        "(`bundle-torch` is called with torch tensors), and `load`. Where tvm is not installed, "
        "a load reads one library less.",
    ),
}
_INTRODUCTION = """\
# Benchmarks

Written by `python -m tcexport.tools.bench_suite`, which anyone can run; `tcexport bench m.tcpkg
--against model.py` does the same for a model of your own. In the tables, a number below a runtime
is **how many times longer than the bundle it takes** (above 1, the bundle is faster).

How it is measured:

- Each runtime has a process of its own with the same number of threads. They take turns, a burst of
  calls each (about 50 ms), with a pause before each burst, in several rounds. Times are medians over
  rounds; a ratio is the median of the ratios of each round.
- All get the same inputs, drawn with a fixed seed within the bundle's contract: ordinary numpy
  arrays for the bundle and ONNX Runtime, torch tensors for the others, which run under
  `torch.inference_mode()`. Results are compared with eager's at the first call; `error` is the
  largest absolute difference. A runtime that is wrong is marked, and its time counts for nothing; a
  ratio in parentheses was not compared, and does not count either.
- `compile` is `torch.compile(dynamic=False)`, which compiles again for every size; `compile-dynamic`
  is `dynamic=True`. `aoti` (AOTInductor) and `onnxruntime` are exported once, with the ranges that
  the bundle serves.
- `check` is the part of the bundle's time that goes into holding the call against its contract.
- `first answer` counts from the start of a process to its first result, `build` what was built
  before it, `first calls` what the first calls at all sizes took longer than later ones
  (compilation, mostly). `peak memory` is resident memory at most, weights included.
- Tables of a CPU level (`--level x86-64-v3`) are of the same machine with AVX-512 and AMX hidden from
  every runtime: the CPUID instruction does not name them (`tools/benchmarks/cpuid.c`).
"""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--threads", type=click.IntRange(min=1), help="By default, the usable cores.")
@click.option("--level", type=click.Choice(LEVELS), help="As `tcexport bench`.")
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=_ROOT / "docs",
    help="Where benchmarks.md and the folder benchmarks/ are; by default the checkout's docs.",
)
def main(
    names: tuple[str, ...], threads: int | None, level: str | None, rounds: int, folder: Path
) -> None:
    """Measure the models NAME (all: without), and write the page."""
    known = [*_MODELS, *_TEXTS]
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"there is no {name}; there are {', '.join(known)}"
                + "".join(f" (did you mean {each}?)" for each in suggestions(name, known)[:1])
            )
    from ..runtime.threads import thread_count

    failed = []
    kept = folder / "benchmarks"
    kept.mkdir(parents=True, exist_ok=True)
    for name in names or known:
        click.echo(f"== {name}", err=True)
        if name in _TEXTS:
            (kept / f"{name}.txt").write_text(_printed(name))
        else:
            stem = f"{name}.{level}" if level else name
            files = (kept / f"{stem}.json", kept / f"{stem}.svg")
            for file in files:
                file.unlink(missing_ok=True)  # no older result stands in for one that fails
            try:
                results = measure_model(name, thread_count(threads), rounds, level or "")
            except subprocess.CalledProcessError:
                failed.append(name)
                continue
            files[0].write_text(json.dumps(as_data(results), indent=1) + "\n")
            files[1].write_text(svg(results))
    (folder / "benchmarks.md").write_text(page(kept))
    if failed:
        raise click.ClickException(f"not measured, since the export failed: {', '.join(failed)}")


def measure_model(name: str, threads: int, rounds: int, level: str = "") -> Results:
    """Export one of the models, as a user would, and time it.

    Raises:
        ClickException: this is no checkout.
        subprocess.CalledProcessError: the export failed; it has said why.
    """
    source = _ROOT / _MODELS[name]
    if not source.is_file():
        raise click.ClickException(f"there is no file {source}: the suite runs from a checkout")
    lists = lists_of(source)
    with tempfile.TemporaryDirectory(prefix="tcexport-suite-") as folder:
        bundle = Path(folder) / f"{name}.tcpkg"
        dims = [each for dim in lists["dynamic"] for each in ("--dynamic", dim)]
        export = [sys.executable, "-m", "tcexport", "export", str(source), *dims]
        subprocess.run([*export, "-o", str(bundle)], check=True, stdout=sys.stderr)
        with open_bundle(bundle) as opened:
            contract = opened.manifest.contract
        with Progress(quiet=False) as progress:
            results = measure(
                bundle,
                against=str(source),
                inputs=(),
                runtimes=RUNTIMES,
                sizes=[parse_sizes(each, contract) for each in lists["sizes"]],
                threads=threads,
                rounds=rounds,
                progress=progress,
                level=level,
            )
    # No place on this machine in what is published.
    return dataclasses.replace(results, bundle=bundle.name, against=_MODELS[name])


def lists_of(source: Path) -> dict[str, list[str]]:
    """The lists `dynamic` and `sizes` of a model file, which is not run for them."""
    lists: dict[str, list[str]] = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("dynamic", "sizes"):
                lists[name] = ast.literal_eval(node.value)
    return lists


def _printed(tool: str) -> str:
    command = [sys.executable, "-m", f"tcexport.tools.{tool}"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def page(kept: Path) -> str:
    """docs/benchmarks.md from the results in a folder, in the order of the suite."""
    return "\n".join([_INTRODUCTION, *_sections(kept), ""])


def _sections(kept: Path) -> Iterator[str]:
    for name, source in _MODELS.items():
        file = kept / f"{name}.json"
        yield f"## {name}"
        yield ""
        if not file.exists():
            yield f"`{source}`: not measured yet."
            yield ""
            continue
        results = read_results(json.loads(file.read_text()))
        what, *where = heading(results)
        yield _first_line(_ROOT / source)
        yield f"`{source}`; {what.rpartition(': ')[2]}."
        yield ""
        yield from markdown_lines(results)
        yield ""
        yield f"![{name}: time of each runtime over the bundle's](benchmarks/{name}.svg)"
        yield ""
        yield from (f"{line}  " for line in [*where, *results.notes])
        yield ""
        yield from _held_sections(kept, name)
    for tool, (title, introduction) in _TEXTS.items():
        text = kept / f"{tool}.txt"
        if text.exists():
            yield f"## {title}"
            yield ""
            if introduction:
                yield introduction
                yield ""
            yield f"```\n{text.read_text().strip()}\n```"
            yield ""


def _held_sections(kept: Path, name: str) -> Iterator[str]:
    """A model's times with all runtimes held to a CPU level, where they were measured."""
    for level in reversed(LEVELS):
        file = kept / f"{name}.{level}.json"
        if file.exists():
            results = read_results(json.loads(file.read_text()))
            yield f"### {name}, {level}"
            yield ""
            yield from markdown_sizes(results)
            yield ""
            yield from (f"{line}  " for line in [*heading(results)[1:], *results.notes])
            yield ""


def read_results(data: Any) -> Results:
    """The results in the JSON that `as_data` made."""
    return msgspec.convert(data, Results)


def _first_line(source: Path) -> str:
    """What a model file says of itself."""
    return (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
