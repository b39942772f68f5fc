"""What torch's own code for some ops would fix in a trace, done in another way.

Recurrent layers stay whole, with their number of steps dynamic: torch's shape functions run them step
by step. While `whole_ops` is active they give the shapes alone, through an op that cannot be
computed: should one of them get into a graph in the place of the layer, it is refused by its name.
The inverse short-time Fourier transform is written so that no value of a tensor is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table

from .spectral import istft

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
_OWN: dict[Any, Callable[..., Any]] = {**_SHAPES, torch.ops.aten.istft.default: istft}
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


@contextmanager
def whole_ops() -> Iterator[None]:
    """While active, a trace follows these ops through our functions."""
    with ExitStack() as stack:
        for op, kernel in _OWN.items():
            stack.enter_context(_kernels(op, kernel))
        yield


@contextmanager
def _kernels(op: Any, kernel: Callable[..., Any]) -> Iterator[None]:
    saved, decomposition = dict(op.py_kernels), decomposition_table.get(op)
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
