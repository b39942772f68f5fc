"""What torch's own code for some ops would fix in a trace, done in another way.

Recurrent layers stay whole, with their number of steps dynamic: torch's shape functions run them step
by step. While `whole_ops` is active they give the shapes alone, through an op that cannot be
computed: should one of them get into a graph in the place of the layer, it is refused by its name.
The inverse short-time Fourier transform is written so that no value of a tensor is read,
``take_along_dim``, ``affine_grid``, ``linspace`` and ``cdist`` so that no size is; ``contiguous``,
``reshape``, ``linear`` and convolutions do not ask for sizes to learn how a tensor lies in memory. What
the sides of ``torch.cond`` give needs no merging where it is alike. Assertions are kept, those without
a message too. A slice that ends at a size of unknown sign, such as ``n - n // 3``, has a length: the
example says on which side of zero the end is, and a guard holds it there.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes as symbolic_shapes
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    SymIntEqByExpr,
    has_free_unbacked_symbols,
    has_guarding_hint,
    statically_known_true,
)
from torch.fx.node import has_side_effect

from .checks import ASSERTIONS
from .composites import affine_grid, cdist, line
from .spectral import istft

for _assertion in ASSERTIONS:  # torch 2.13 drops one without a message, as an op without use
    has_side_effect(_assertion)

_LIBRARY = torch.library.Library("tcexport", "FRAGMENT")
_LIBRARY.define(
    "recurrent_shapes(Tensor input, Tensor[] hx, bool bidirectional, bool batch_first) -> Tensor[]"
)


@torch.library.register_fake("tcexport::recurrent_shapes")
def _shapes(
    input: torch.Tensor, hx: Sequence[torch.Tensor], bidirectional: bool, batch_first: bool
) -> list[torch.Tensor]:
    features = hx[0].shape[-1] * (2 if bidirectional else 1)
    results = [input.new_empty((*input.shape[:-1], features))]
    return results + [torch.empty_like(each) for each in hx]


def _of_lstm(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    return tuple(torch.ops.tcexport.recurrent_shapes(input, list(hx), bidirectional, batch_first))


def _of_others(input: torch.Tensor, hx: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    return _of_lstm(input, [hx], *rest)


_SHAPES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.lstm.input: _of_lstm,
    torch.ops.aten.gru.input: _of_others,
    torch.ops.aten.rnn_tanh.input: _of_others,
    torch.ops.aten.rnn_relu.input: _of_others,
}


def _taken_along(x: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """`torch.take_along_dim`, whose own code reads sizes as numbers, which fixes them."""
    if dim is None:
        return x.reshape(-1).gather(0, indices.reshape(-1))
    dim %= x.dim()
    rest = [*x.shape[:dim], indices.shape[dim], *x.shape[dim + 1 :]]
    shape = torch.broadcast_shapes(rest, indices.shape)
    whole = [*shape[:dim], x.shape[dim], *shape[dim + 1 :]]
    return x.expand(whole).gather(dim, indices.expand(shape))


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`torch.nn.functional.linear` of rows that lie in any way, whose result is contiguous. Torch asks
    how they lie, to choose between two ways to the same, which leaves guards like ``seq != 1`` where an
    input was transposed."""
    operands = [each for each in (input, weight, bias) if each is not None]
    rows = input.dim() > 2 and weight.dim() == 2 and (bias is None or bias.dim() == 1)
    if (
        not rows
        or not all(type(each) is FakeTensor and each.layout is torch.strided for each in operands)
        or len({(each.dtype, each.device) for each in operands}) > 1
        or not statically_known_true(input.shape[-1] == weight.shape[1])
        or (bias is not None and not statically_known_true(bias.shape[0] == weight.shape[0]))
    ):
        op = torch.ops.aten.linear.default
        result: torch.Tensor = op._op_dk(DispatchKey.CompositeImplicitAutograd, input, weight, bias)
        return result
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _reshape(x: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """What is a view at all sizes, as one. Torch asks first whether the tensor is contiguous, which is
    another question, and leaves guards like ``seq != 1``."""
    if x.layout is torch.strided and not x.is_mkldnn and _can_be_viewed(x, shape):
        viewed: torch.Tensor = torch.ops.aten.view.default(x, shape)
        return viewed
    op = torch.ops.aten.reshape.default
    result: torch.Tensor = op._op_dk(DispatchKey.CompositeImplicitAutograd, x, shape)
    return result


def _can_be_viewed(x: torch.Tensor, shape: Sequence[Any]) -> bool:
    """Whether it can at all sizes, as far as that is known."""
    if any(statically_known_true(size < 0) for size in shape):
        return False  # a length that is to be found: torch finds it
    strides = fake_impls._compute_stride(x.shape, x.stride(), shape, size_oblivious=True)
    return strides is not None


_OWN: dict[Any, Callable[..., Any]] = {
    **_SHAPES,
    torch.ops.aten.linear.default: _linear,
    torch.ops.aten.istft.default: istft,
    torch.ops.aten.take_along_dim.default: _taken_along,
    torch.ops.aten.affine_grid_generator.default: affine_grid,
    torch.ops.aten.cdist.default: cdist,
}
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


@contextmanager
def whole_ops(*, copies: bool = True) -> Iterator[None]:
    """While active, a trace follows these ops through our functions.

    Args:
        copies: take a copy where it hangs on the sizes whether there is one; torch asks.
    """
    with ExitStack() as stack:
        for op, kernel in _OWN.items():
            stack.enter_context(_kernels(op, kernel))
        stack.enter_context(_open_lines())
        stack.enter_context(_merging())
        stack.enter_context(_sided_slices())
        if copies:
            stack.enter_context(_copies())
        stack.enter_context(_layouts_of_images())
        yield


@contextmanager
def _open_lines() -> Iterator[None]:
    """`torch.linspace` between numbers is made of sizes that stay open, and so is ``arange(0.5, n)``,
    whose size torch has as a rounded float. (Under their names in torch only: the ops themselves take
    plain numbers, whatever calls them.)"""
    original = torch.linspace
    counting = torch.arange

    def linspace(start: Any, end: Any, steps: Any, **more: Any) -> torch.Tensor:
        dtype = more.get("dtype") or torch.get_default_dtype()
        plain = not any(isinstance(each, (torch.Tensor, complex)) for each in (start, end))
        # Eager rounds each step to a half type, and counts integers otherwise.
        known = dtype in (torch.float32, torch.float64)
        if not plain or not known or more.keys() - {"dtype", "device"}:
            return original(start, end, steps, **more)
        return line(start, end, steps, dtype, more.get("device"))

    def arange(*bounds: Any, **more: Any) -> torch.Tensor:
        if len(bounds) != 2 or not isinstance(bounds[0], float) or isinstance(bounds[1], float):
            return counting(*bounds, **more)
        if any(isinstance(each, torch.Tensor) for each in bounds) or more.keys() - {
            "dtype",
            "device",
        }:
            return counting(*bounds, **more)
        dtype = more.get("dtype") or torch.get_default_dtype()
        start, end = bounds
        torch._check(end >= math.ceil(start))
        count = end + math.ceil(-start)
        steps = counting(count, dtype=torch.float64, device=more.get("device"))
        return (steps + start).to(dtype)

    torch.linspace, torch.arange = linspace, arange
    try:
        yield
    finally:
        torch.linspace, torch.arange = original, counting


@contextmanager
def _merging() -> Iterator[None]:
    """Where both sides of a torch.cond give tensors of the same sizes and strides, the branch gives
    such a one. Torch makes the strides anew of the sizes, and refuses ``max(1, n)``, which is a stride
    where a size may be 0."""
    cond: Any = importlib.import_module("torch._higher_order_ops.cond")  # its package hides it
    merge = cond._merge_output

    def merged(a: Any, b: Any, mode: FakeTensorMode) -> Any:
        if not isinstance(a, FakeTensor) or not isinstance(b, FakeTensor) or _form(a) != _form(b):
            return merge(a, b, mode)
        if any(has_free_unbacked_symbols(size) for size in a.shape):
            return merge(a, b, mode)
        with mode:
            return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device)

    cond._merge_output = merged
    try:
        yield
    finally:
        cond._merge_output = merge


def _form(x: torch.Tensor) -> tuple[Any, ...]:
    """What must be alike for one tensor to stand for another."""
    sizes = [SymIntEqByExpr(each) for each in (*x.shape, *x.stride(), x.storage_offset())]
    special = (x.is_quantized, x.is_sparse, x.is_conj(), x.is_neg())
    return x.dtype, x.device, x.layout, x.dim(), special, sizes


@contextmanager
def _sided_slices() -> Iterator[None]:
    original = fake_impls._compute_slice_index

    def compute(size: Any, index: Any) -> Any:
        found = original(size, index)
        if found is not None or not (isinstance(index, torch.SymInt) and has_guarding_hint(index)):
            return found  # a number that the model computes may be on either side
        return torch.sym_min(index, size) if index >= 0 else torch.sym_max(index + size, 0)

    fake_impls._compute_slice_index = compute
    try:
        yield
    finally:
        fake_impls._compute_slice_index = original


@contextmanager
def _copies() -> Iterator[None]:
    """`contiguous` and `reshape` of a tensor that is contiguous at some sizes only are copies at all of
    them. Torch asks, which leaves guards like ``height % 8 != 0`` where an image was padded."""
    original = torch.Tensor.reshape

    def contiguous(
        self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
    ) -> torch.Tensor:
        if memory_format is torch.contiguous_format and _is_contiguous(self):
            return self
        return self.clone(memory_format=memory_format)

    def reshape(self: torch.Tensor, *shape: Any, **named: Any) -> torch.Tensor:
        return original(contiguous(self), *shape, **named)

    FakeTensor.contiguous = contiguous
    FakeTensor.reshape = reshape
    try:
        yield
    finally:
        del FakeTensor.contiguous
        del FakeTensor.reshape


@contextmanager
def _layouts_of_images() -> Iterator[None]:
    """A convolution of a contiguous image gives a contiguous one. Torch asks whether the strides are
    those of channels that lie last, which leaves guards that no size is 1."""
    implementations = fake_impls.op_implementations_dict
    original = implementations[torch.ops.aten.convolution.default]

    def convolution(mode: FakeTensorMode, op: Any, *args: Any, **kwargs: Any) -> Any:
        if not all(_is_contiguous(each) for each in args[:2]):
            return original(mode, op, *args, **kwargs)
        known = symbolic_shapes.has_guarding_hint
        symbolic_shapes.has_guarding_hint = lambda size: isinstance(size, int)
        try:
            return original(mode, op, *args, **kwargs)
        finally:
            symbolic_shapes.has_guarding_hint = known

    implementations[torch.ops.aten.convolution.default] = convolution
    try:
        yield
    finally:
        implementations[torch.ops.aten.convolution.default] = original


def _is_contiguous(x: torch.Tensor) -> bool:
    """Whether it is so at all sizes."""
    step: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if not statically_known_true(size == 1) and not statically_known_true(stride == step):
            return False
        step = step * size
    return True


@contextmanager
def views_kept() -> Iterator[None]:
    """While active, ``aten.reshape`` of what is a view at all sizes asks for none of them."""
    with _kernels(torch.ops.aten.reshape.default, _reshape):
        yield


@contextmanager
def _kernels(op: Any, kernel: Callable[..., Any]) -> Iterator[None]:
    saved, decomposition = dict(op.py_kernels), decomposition_table.get(op)
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        op.py_kernels.update(dict.fromkeys(_KEYS, kernel))
        op._dispatch_cache.clear()
    decomposition_table[op] = kernel  # fake tensors look here
    try:
        yield
    finally:
        if decomposition is None:
            del decomposition_table[op]
        else:
            decomposition_table[op] = decomposition
        op.py_kernels.clear()
        op.py_kernels.update(saved)
        op._dispatch_cache.clear()
