"""What to do about sizes that differ, side by side: compile for each, compile once, or ahead of time.

Eager; `torch.compile` as it is, with dynamic=True, and for every size before the first request; one
bundle for all sizes; a bundle with code of its own for the sizes that matter. For each its first call
and its later ones at every size, and how often something was compiled while a caller waited.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..artifacts.container import open_bundle
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.manifest import GENERAL, Manifest, contract_of
from .bench_measure import General, measure
from .bench_names import (
    BUNDLE,
    BUNDLE_GENERAL,
    COMPILE_AUTO,
    COMPILE_DYNAMIC,
    COMPILE_WARMED,
    EAGER,
    STRATEGIES,
)
from .bench_report import aligned, heading, ratio_text, time_text, verdict
from .bench_results import Results, RuntimeResult, Timing
from .bench_sizes import Sizes, misfit, sizes_text
from .progress import Report
from .trial import Again, export_with

LABELS = {
    BUNDLE: "bundle with variants",
    BUNDLE_GENERAL: "bundle, one code",
    EAGER: "eager",
    COMPILE_AUTO: "torch.compile",
    COMPILE_DYNAMIC: "torch.compile(dynamic=True)",
    COMPILE_WARMED: "torch.compile(dynamic=False), warmed",
}


def compare(
    bundle: Path,
    again: Again,
    sizes: Sequence[Sizes],
    *,
    threads: int,
    rounds: int,
    progress: Report,
) -> Results:
    """Time all strategies at some sizes.

    Args:
        bundle: where it has variants, it is the one with variants, and its general code the one for
            all sizes. Else it is the one for all sizes, and its source is exported with variants for
            ``sizes``, to try.
        again: that source; its model runs under torch.
        sizes: none: the lowest that each variant takes.

    Raises:
        BundleError: the file is no bundle. ExportError: the source cannot be exported so.
        UsageError: TC008, there are neither sizes nor variants.
    """
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
    with tempfile.TemporaryDirectory(prefix="tcexport-strategies-") as folder:
        specialized, build = bundle, None
        general: General | None = None
        if not manifest.variants:
            if not sizes:
                raise UsageError(
                    Diagnostic(
                        "TC008",
                        f"{bundle} has no variants: say which sizes matter",
                        tries=("--sizes batch=1,seq=128 --sizes batch=1,seq=512",),
                    )
                )
            general = General(bundle, "")
            specialized = Path(folder) / bundle.name
            progress("export with variants", None)
            start = time.perf_counter()
            export_with(again, manifest, sizes, specialized)
            build = time.perf_counter() - start
            progress("export with variants", build)
            with open_bundle(specialized) as opened:
                held = opened.manifest
        else:
            held = manifest
            if manifest.variants[-1].contract is None:
                general = General(bundle, GENERAL)
            sizes = sizes or lowest_of_variants(manifest)
        results = measure(
            specialized,
            against=again.source,
            inputs=again.inputs,
            runtimes=STRATEGIES,
            sizes=sizes,
            threads=threads,
            rounds=rounds,
            progress=progress,
            general=general,
            build=build,
        )
    notes = (*results.notes, *_served_by_general(held, sizes))
    return replace(results, bundle=str(bundle), notes=notes)


def lowest_of_variants(manifest: Manifest) -> list[Sizes]:
    """The lowest sizes that each variant takes, the general code aside."""
    return [
        {dim.name: dim.lo for dim in contract_of(manifest, each).dims}
        for each in manifest.variants
        if each.name != GENERAL
    ]


def _served_by_general(manifest: Manifest, sizes: Sequence[Sizes]) -> Iterator[str]:
    for each in sizes:
        takes = (one for one in manifest.variants if not misfit(contract_of(manifest, one), each))
        taker = next(takes, None)
        if taker is None or taker.name == GENERAL:
            yield f"{sizes_text(each)}: no variant is for these sizes, the general code serves them"


# --- the report -----------------------------------------------------------------------------------


def strategy_lines(results: Results) -> Iterator[str]:
    """The whole report, line by line."""
    yield from heading(results)
    yield from (f"note: {note}" for note in results.notes)
    for number, sizes in enumerate(results.sizes):
        yield ""
        yield sizes_text(sizes)
        heads = ["", "first call", "compiled", "later calls", "ratio", ""]
        rows = [_size_row(results, each, number) for each in results.runtimes]
        yield from aligned([heads, *(row for row in rows if row)])
    yield ""
    yield "all sizes together"
    heads = ["", "compilations", "before the first call", "first calls", "mean ratio"]
    yield from aligned([heads, *(_row(results, each) for each in results.runtimes)])
    yield ""
    yield (
        "compiled: graphs that were compiled within the first call; a bundle compiles none. ratio: "
        "later calls over those of the bundle with variants. before the first call: the export, or "
        "the calls at all sizes that warm it"
    )


def _size_row(results: Results, runtime: RuntimeResult, number: int) -> list[str]:
    if len(runtime.timings) <= number:
        return []
    timing: Timing = runtime.timings[number]
    label = LABELS[runtime.name]
    if timing.failure:
        return [label, f"failed: {timing.failure}"]
    return [
        label,
        time_text(timing.first),
        str(timing.compiled),
        time_text(timing.median),
        ratio_text(results, runtime, number),
        verdict(timing),
    ]


def _row(results: Results, runtime: RuntimeResult) -> list[str]:
    label = LABELS[runtime.name]
    if runtime.skipped or runtime.failure:
        return [label, f"skipped, {runtime.skipped}" if runtime.skipped else runtime.failure]
    mean = results.mean_ratio(runtime.name)[0] if runtime.name != BUNDLE else 1.0
    return [
        label,
        str(runtime.compilations),
        "–" if runtime.build is None else time_text(runtime.build),
        time_text(sum(each.first for each in runtime.timings if not each.failure)),
        "no size counts" if mean is None else f"{mean:.2f}x",
    ]
