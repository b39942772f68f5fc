"""Variants that are slower than the code that would serve their calls else: they are left out.

They are measured in the finished file, before anyone sees it, in a process of the runtime's own. A
clock does not say the same twice, and equal exports give equal bytes all the same: the file is built
again as if what is left out had not been asked for. So its bytes are those of an export that asks for
the variants that are in it, and for no measurement.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.turns import Ratio, ratio_of
from .variants import Plan, Planned

_SECONDS = 900
_POINTS = 2  # sizes at which a variant is measured


@dataclass(frozen=True)
class Raced:
    """A variant beside the code ``against``, at some sizes: how their times stand; None where a call
    takes too long to be measured. ``slower``: beyond noise, in two measurements."""

    variant: str
    against: str
    sizes: dict[str, int]
    ratio: Ratio | None
    slower: bool = False


def raced(bundle: Path, planned: Plan, folder: Path) -> tuple[Raced, ...]:
    """Measure every variant in which sizes are fixed, at its smallest and largest verified call.

    Args:
        bundle: the file, under whatever name.
        folder: where `verify` has recorded its calls.

    Raises:
        ExportError: TC504, the runtime could not run the file.
    """
    recording = json.loads((folder / "calls.json").read_text())
    races: list[tuple[Planned, int]] = []
    for variant in planned.made:
        calls = [
            number for number, name in enumerate(recording["variants"]) if name == variant.name
        ]
        calls.sort(key=lambda number: _bytes(folder, number))
        races += [(variant, call) for call in dict.fromkeys((calls[0], calls[-1]))][:_POINTS]
    if not races:
        return ()
    general = {each.arm: each.name for each in planned.variants if not each.sizes}
    wanted = [
        {"call": call, "variant": each.name, "against": general[each.arm]} for each, call in races
    ]
    (folder / "races.json").write_text(json.dumps(wanted))
    _run(bundle, folder)
    found = []
    for (each, call), runs in zip(
        races, json.loads((folder / "raced.json").read_text()), strict=True
    ):
        ratios = [ratio_of(times) for times in runs]
        found.append(
            Raced(
                each.name,
                general[each.arm],
                recording["sizes"][call],
                ratios[-1] if ratios else None,
                len(ratios) == 2 and all(ratio.slower for ratio in ratios),
            )
        )
    return tuple(found)


def _bytes(folder: Path, call: int) -> int:
    return (folder / f"{call}.inputs.safetensors").stat().st_size


def _run(bundle: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "tcexport.runtime.race", str(bundle.resolve()), str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, cwd=folder, check=False
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"did not end within {_SECONDS} s", ()) from None
    if done.returncode:
        last = tuple(done.stderr.strip().splitlines()[-6:])
        raise _failed(f"ended with exit status {done.returncode}", last)


def _failed(what: str, notes: Sequence[str]) -> ExportError:
    return ExportError(
        Diagnostic(
            "TC504",
            f"measuring the variants of the finished bundle {what}",
            notes=tuple(notes),
            tries=("--keep-variants, which measures nothing",),
        )
    )


def left_out(found: Sequence[Raced]) -> tuple[Diagnostic, ...]:
    """A note for each variant that is slower somewhere."""
    slower: dict[str, list[Raced]] = {}
    for each in found:
        if each.slower:
            slower.setdefault(each.variant, []).append(each)
    return tuple(
        Diagnostic(
            "TC226",
            f"the variant {name} was left out: "
            + "; ".join(f"at {_text(each.sizes)} {_times(each)}" for each in rows),
            notes=("the bundle has the bytes of one that is exported without this variant",),
            tries=("--keep-variants, to have it all the same",),
            severity="note",
        )
        for name, rows in slower.items()
    )


def _times(row: Raced) -> str:
    assert row.ratio is not None
    return (
        f"it takes {row.ratio.low:.2f} to {row.ratio.high:.2f} times as long as the code of "
        f"{row.against}"
    )


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "the example"
