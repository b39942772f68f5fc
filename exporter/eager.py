"""Running the model itself: the answer that everything else is held against."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .drawing import drawing
from .examples import contiguous_clone
from .signature import Bound
from .written import Written, tensors_of


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """What a model prints and warns of is shown where it is run first, and not again."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def without_logs(*names: str) -> Iterator[None]:
    """These loggers say what is critical alone; their levels are put back."""
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """Torch's layers of transformers compute by their parts, and not by one fused op."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """While active, torch's branches and loops (`cond`, `while_loop`, `scan`) run as Python. Torch
    compiles them in eager mode, too, once for each size, and under `Written` fails at a branch within
    a branch."""
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def run_eager(module: torch.nn.Module, bound: Bound, leaves: Sequence[Any]) -> list[Any]:
    """The flat outputs of one call on clones of ``leaves``; the module's tensors stay as they were.

    Whatever the model raises comes through.
    """
    flat, spec = pytree.tree_flatten((bound.args, bound.kwargs))
    if len(flat) != len(leaves):
        raise ValueError(f"{len(leaves)} leaves for {len(flat)} arguments")
    args, kwargs = pytree.tree_unflatten([contiguous_clone(leaf) for leaf in leaves], spec)
    written = Written(tensors_of(module), lambda: None)
    try:
        with torch.no_grad(), written, drawing(bound), uncompiled():
            result = module(*args, **kwargs)
            outputs = [contiguous_clone(value) for value in pytree.tree_leaves(result)]
    finally:
        written.restore()
    return outputs


def same_numbers(got: torch.Tensor, want: torch.Tensor) -> tuple[bool, float]:
    """Whether two results agree, and the largest absolute difference of finite values.

    Shapes and dtypes must be equal; integers and bools exactly. Floats may differ by the tolerance
    of their dtype, relative to each value and to the root mean square of all.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return False, float("inf")
    if want.numel() == 0:
        return True, 0.0
    if not (want.is_floating_point() or want.is_complex()):
        equal = torch.equal(got, want)
        return equal, 0.0 if equal else float((got != want).double().mean())
    tolerance = TOLERANCE.get(want.dtype, 1e-4)
    squares, count = 0.0, 0
    for a, b in _wide_parts(got, want):
        total = float(b.abs().square_().sum())
        if not math.isfinite(total):
            finite = torch.isfinite(b)
            if not torch.equal(torch.isfinite(a), finite):
                return False, float("inf")
            if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
                return False, float("inf")
            b = b[finite]
            total = float(b.abs().square_().sum())
        squares += total
        count += b.numel()
    if not count:
        return True, 0.0
    # Squares that overflow would make the scale infinite, and with it everything the same.
    scale = max(math.sqrt(squares / count), 1e-2) if math.isfinite(squares) else 1e-2
    same, largest = True, 0.0
    for a, b in _wide_parts(got, want):
        difference = (a - b).abs()
        most = float(difference.max())
        if not math.isfinite(most):
            finite = torch.isfinite(b)
            if not bool(torch.isfinite(a[finite]).all()):
                return False, float("inf")
            b, difference = b[finite], difference[finite]
            most = float(difference.max()) if b.numel() else 0.0
        largest = max(largest, most)
        same = same and bool((difference <= b.abs().add_(scale).mul_(tolerance)).all())
    return same, largest


def _wide_parts(
    got: torch.Tensor, want: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The values of two tensors of one shape in double precision, some thousand at a time: they stay in
    the processor's cache, where copies of all logits of a batch would be many times the results."""
    wide = torch.complex128 if want.is_complex() else torch.float64
    pairs = zip(got.reshape(-1).split(_PART), want.reshape(-1).split(_PART), strict=True)
    for a, b in pairs:
        yield a.to(wide), b.to(wide)


_PART = 1 << 15

TOLERANCE = {
    torch.float64: 1e-6,
    torch.complex128: 1e-6,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
}
