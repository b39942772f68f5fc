"""First calls before the first real one: code and weights are read, threads and memory are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..artifacts.contract import Contract
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import ExprError
from ..artifacts.names import suggestions
from .drawn import drawn_call

Sizes = Mapping[str, int]


def warm_up(
    contract: Contract, call: Callable[..., Any], sizes: Sizes | Sequence[Sizes]
) -> tuple[float, ...]:
    """Make a call at each of ``sizes``; the seconds that each took. See `Model.warmup`.

    Raises:
        UsageError: TC008, a dim that is not there, or what is no number.
    """
    points = [sizes] if isinstance(sizes, Mapping) else list(sizes) or [{}]
    return tuple(_timed(contract, call, completed(contract, point)) for point in points)


def _timed(contract: Contract, call: Callable[..., Any], sizes: Sizes) -> float:
    try:
        args, kwargs = drawn_call(contract, sizes)
    except (ExprError, ValueError) as error:  # a shape that is negative, or no number at all
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(
            Diagnostic("TC008", f"warmup at {given}: there is no input of these sizes ({error})")
        ) from None
    start = time.perf_counter()
    call(*args, **kwargs)
    return time.perf_counter() - start


def completed(contract: Contract, sizes: Sizes) -> dict[str, int]:
    """All dims: those that are not given at the lowest size that is not 0."""
    if not isinstance(sizes, Mapping):
        raise UsageError(
            Diagnostic(
                "TC008", f"warmup({sizes!r:.80}): needs the sizes of dims", tries=(_EXAMPLE,)
            )
        )
    names = [dim.name for dim in contract.dims]
    for name, size in sizes.items():
        if name not in names:
            close = suggestions(name, names)
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"warmup: there is no dim {name!r:.80}",
                    notes=(f"dims: {', '.join(names) or 'none'}",),
                    tries=tuple(f"warmup({{{each!r}: …}})" for each in close[:1]),
                )
            )
        if type(size) is not int:
            raise UsageError(
                Diagnostic("TC008", f"warmup: {name}={size!r:.40} is no size", tries=(_EXAMPLE,))
            )
    lowest = {dim.name: dim.lo if dim.lo else dim.lo + dim.step for dim in contract.dims}
    highest = {dim.name: dim.hi for dim in contract.dims}
    for name, size in lowest.items():
        high = highest[name]
        lowest[name] = size if high is None or size <= high else high
    return {**lowest, **sizes}


_EXAMPLE = 'warmup({"batch": 1, "seq": 128}), or a list of these'
