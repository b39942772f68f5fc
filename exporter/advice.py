"""Should this model be exported? Facts that were measured or counted, and what follows from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.contract import Contract
from ..lowering.survey import OpUse
from .source import Source

# Beside its kernels a call of a bundle costs about as much as one of an eager module: on one core of
# a Xeon (family 6, model 207), `tcexport bench` found `x + 1` on 1x16 and 64x16 as fast in both
# (eager 0.94x), and an MLP of six ops, 16-64-64-4, faster (2.9x).
_FEW_OPS = 3
_LITTLE = 1_000_000  # floating-point operations that take any CPU less than that


@dataclass(frozen=True)
class Gain:
    """What `tcexport bench` measured: how many times longer than the bundle eager takes, the
    geometric mean over ``sizes`` sizes where both were right."""

    over_eager: float
    sizes: int
    file: str


@dataclass(frozen=True)
class Advice:
    """The facts, and ``lines``: the same in at most three lines of text.

    Attributes:
        parameters: how many numbers the model's parameters are.
        ops: how many ops a call computes; ``fast_ops`` in kernels of ours, ``data_ops`` on sizes
            that only the data decides.
        flops, fast_flops: as torch.utils.flop_counter counts (products, convolutions and attention),
            at ``sizes``; without those on sizes that the data decides.
        data_checks: places where values are looked at in each call.
        gain: None where there is no benchmark of this source.
    """

    parameters: int
    ops: int
    fast_ops: int
    data_ops: int
    flops: int
    fast_flops: int
    sizes: dict[str, int]
    data_checks: int
    gain: Gain | None
    lines: tuple[str, ...]


def advise(
    source: Source,
    ops: Sequence[OpUse],
    contract: Contract,
    sizes: Mapping[str, int],
    bench: Path | None,
) -> Advice:
    """The advice on a source all of whose ops can be lowered.

    Args:
        sizes: of the dims, where the arithmetic was counted.
        bench: where results of `tcexport bench` would lie.
    """
    parameters = sum(each.numel() for each in source.module.parameters())
    computed = sum(each.count - each.folded for each in ops)
    fast_ops = sum(each.fast for each in ops)
    data_ops = sum(each.on_data for each in ops)
    flops = sum(each.flops for each in ops)
    fast_flops = sum(each.fast_flops for each in ops)
    checks = len(contract.index_guards) + len(contract.computed_guards)
    gain, stale = _gain(bench, source)
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    share = f", {_percent(fast_flops, flops)} of it in kernels of ours" if flops else ""
    facts = (
        f"a call is {_counted(computed, 'op')} ({fast_ops} in kernels of ours) and "
        f"{_short(flops)}FLOP{f' at {at}' if at else ''}{share}; "
        f"{_short(parameters).rstrip()} parameters; {_places(checks)}"
    )
    if gain is not None:
        measured = (
            f"measured: eager takes {gain.over_eager:.3g} times as long as the bundle "
            f"(geometric mean over {gain.sizes} sizes, {gain.file})"
        )
    else:
        measured = stale or f"the gain was not measured: {_command(bench, source)}"
    verdict = _verdict(computed, data_ops, flops, fast_ops, gain)
    lines = (facts, measured, *((verdict,) if verdict else ()))
    return Advice(
        parameters,
        computed,
        fast_ops,
        data_ops,
        flops,
        fast_flops,
        dict(sizes),
        checks,
        gain,
        lines,
    )


def _verdict(ops: int, data_ops: int, flops: int, fast_ops: int, gain: Gain | None) -> str:
    if gain is not None:
        return "" if gain.over_eager > 1 else "it does not gain: eager was not slower"
    if ops <= _FEW_OPS and flops < _LITTLE:
        return "too small to gain in speed: what a call costs besides would be most of it"
    if 2 * data_ops > ops:
        return (
            f"too data-dependent to gain much: {data_ops} of {ops} ops are on sizes that only the "
            "data decides, in generic loops"
        )
    if not fast_ops:
        return (
            "no op is in a kernel of ours: the gain is what calling PyTorch costs, not arithmetic"
        )
    return ""


def _gain(bench: Path | None, source: Source) -> tuple[Gain | None, str]:
    """What a file of results says of this very source; else why it says nothing."""
    if bench is None or not bench.is_file():
        return None, ""
    try:
        data: Any = json.loads(bench.read_text(encoding="utf-8"))
        same = (data["model"], data["source_sha256"]) == (source.name, source.sha256)
        eager = next((each for each in data["runtimes"] if each["name"] == "eager"), None)
        mean = None if eager is None else eager["mean_ratio"]
        if not same:
            return None, f"{bench.name} measured another version of the source: bench it again"
        if mean is None or mean["geometric_mean"] is None:
            return None, f"{bench.name} has no comparison with eager that counts"
        ratio, sizes = float(mean["geometric_mean"]), int(mean["sizes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, f"{bench.name} is not what `tcexport bench -o` writes"
    if not math.isfinite(ratio) or ratio <= 0:
        return None, f"{bench.name} is not what `tcexport bench -o` writes"
    return Gain(ratio, sizes, bench.name), ""


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.0f} %" if part in (0, whole) else f"{min(max(share, 0.1), 99.9):.1f} %"


def _places(count: int) -> str:
    if not count:
        return "no values are looked at"
    return f"values are looked at in {_counted(count, 'place')}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _command(bench: Path | None, source: Source) -> str:
    """What to type for results that are found the next time."""
    if bench is None or source.file is None:
        return "`tcexport bench` measures it"
    bundle = bench.name.removesuffix(".bench.json") + ".tcpkg"
    return f"tcexport bench {bundle} --against {source.file} -o {bench.name}"


def _short(number: int) -> str:
    """``607 M``, ``4.4 M``, ``12 `` with a blank behind it: powers of 1000."""
    value = float(number)
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000 or prefix == "T":
            break
        value /= 1000
    return f"{number} " if not prefix else f"{value:.3g} {prefix}"
