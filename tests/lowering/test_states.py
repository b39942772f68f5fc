"""State in the compiled code: what calls write to it, and that they write where it lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tcexport.lowering.answer import library_path

from .conftest import TARGET, Compiled, aligned, assert_equal, trace

MOST = 8


class Cache(nn.Module):
    """Each call writes to a cache ``[1, 2, MOST, 4]`` in one way and gives back something of it."""

    def __init__(self, write: Callable[..., Any], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.write = write
        start = torch.arange(2 * MOST * 4).reshape(1, 2, MOST, 4)
        self.register_buffer("k", start.to(dtype))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        result = self.write(self, x, at)
        return self.k.sum(-1) if result is None else result


def slice_at(self: Any, x: Any, at: Any) -> None:
    position = at.item()
    torch._check(position >= 0)
    torch._check(position < MOST)
    self.k[:, :, position : position + 1] = x


def nested_slice_at(self: Any, x: Any, at: Any) -> None:
    position = at.item()
    torch._check(position >= 0)
    torch._check(position < MOST)
    self.k[0, 1, position : position + 1, 1:3] = x[0, 1, :, 1:3]


def index_copy(self: Any, x: Any, at: Any) -> None:
    self.k.index_copy_(2, at, x)


def index_put(self: Any, x: Any, at: Any) -> None:
    self.k[:, :, at] = x


def scatter(self: Any, x: Any, at: Any) -> None:
    self.k.scatter_(2, at.reshape(1, 1, 1, 1).expand(1, 2, 1, 4), x)


def fixed_places(self: Any, x: Any, at: Any) -> None:
    self.k[0, :, 2] = x[0, :, 0]
    self.k[:, -1, ::3] = 7.0
    self.k[:, :, -2:, 1] = x[..., 0]


def add_at(self: Any, x: Any, at: Any) -> None:
    self.k[:, :, at] += x


def count_and_write(self: Any, x: Any, at: Any) -> Any:
    self.n += 1
    self.k.index_copy_(2, at, x)
    self.k.index_copy_(2, (at + 1) % MOST, x * 2)
    return self.k.sum(-1) + self.n


def scale(self: Any, x: Any, at: Any) -> None:
    self.k.mul_(0.5).add_(x)


def old_value_after(self: Any, x: Any, at: Any) -> Any:
    before = self.k.clone()
    self.k.index_copy_(2, at, x)
    return before.sum(-1) * self.k.sum(-1)


def old_value_returned(self: Any, x: Any, at: Any) -> Any:
    before = self.k.clone()
    self.k.index_copy_(2, at, x)
    return before


def returned(self: Any, x: Any, at: Any) -> Any:
    self.k.index_copy_(2, at, x)
    return self.k


def view_returned(self: Any, x: Any, at: Any) -> Any:
    self.k.index_copy_(2, at, x)
    return self.k.view(2, -1)


def from_itself(self: Any, x: Any, at: Any) -> None:
    self.k[:, :, 1:] = self.k[:, :, :-1].clone()
    self.k[:, :, :1] = x


def rolled(self: Any, x: Any, at: Any) -> None:
    self.k.copy_(torch.roll(self.k, -1, 2))
    self.k[:, :, -1:] = x


def from_a_loop(self: Any, x: Any, at: Any) -> Any:
    def go_on(n: Any, k: Any) -> Any:
        return n < at[0]

    def step(n: Any, k: Any) -> Any:
        return n + 1, k * 0.5 + x

    _, k = torch._higher_order_ops.while_loop(go_on, step, (torch.zeros_like(at[0]), self.k))
    self.k.copy_(k)
    return k.sum(-1)


IN_PLACE = [
    slice_at,
    nested_slice_at,
    index_copy,
    index_put,
    scatter,
    fixed_places,
    add_at,
    from_itself,
    returned,
    view_returned,
]
COPIED = [scale, old_value_after, old_value_returned, rolled, count_and_write, from_a_loop]
WRITES = [*IN_PLACE, *COPIED]


class Session:
    """The states of a compiled program, and calls that write to them."""

    def __init__(self, compiled: Compiled, module: nn.Module) -> None:
        self.compiled = compiled
        buffers = dict(module.named_buffers())
        self.tensors = {row.name: aligned(buffers[row.name]) for row in compiled.answer.states}

    def __call__(self, args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        sizes = [int(args[1].item()) for _ in self.compiled.answer.main.sizes]
        return self.compiled(args, sizes, list(self.tensors.values()))


@pytest.mark.parametrize(
    ("write", "dtype"),
    [
        *((write, torch.float32) for write in WRITES),
        *((write, torch.bfloat16) for write in (slice_at, scale)),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_calls_in_a_row_keep_what_was_written(
    write: Callable[..., Any],
    dtype: torch.dtype,
    compile_program: Callable[..., Compiled],
    tmp_path: Path,
) -> None:
    module = Cache(write, dtype).eval()
    example = (torch.rand(1, 2, 1, 4).to(dtype), torch.tensor([3]))
    session = Session(compile_program(trace(module, example, ({}, {}))), module)
    for position in (0, 5, 5, 7, 2):
        call = (torch.rand(1, 2, 1, 4).to(dtype), torch.tensor([position]))
        with torch.no_grad():
            want = module(*call).clone()
        (got,) = session(call)
        assert_equal(want, got, f"the answer at {position}", 1e-6)
        for name, tensor in session.tensors.items():
            assert_equal(module.get_buffer(name), tensor, f"{name} after {position}", 1e-6)
    copies = b"copy_state" in library_path(tmp_path, TARGET).read_bytes()
    assert copies == (write not in IN_PLACE), "whether the cache is copied in a call"
