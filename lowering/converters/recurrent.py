"""Recurrent layers, whole: every layer and direction is a matrix product and a loop over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx

from ...artifacts.recipes import Steps
from ..context import Context, Unsupported
from ..kernels import gemm
from ..kernels.recurrent import CELLS, Cell, Operands, emit_layer, packing
from ..kernels.tile import PANEL
from ..symbols import Shape
from ..tensor import HALVES, Tensor
from .elementwise import pointwise
from .linear import linear
from .registry import converter
from .shape import concatenate


def _register(name: str) -> None:
    @converter(f"aten.{name}.input", takes_halves=True)
    def convert(
        ctx: Context,
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[Tensor]:
        if train and dropout:
            raise Unsupported(f"with dropout={dropout} in training mode", "model.eval()")
        states = [hx] if isinstance(hx, Tensor) else hx
        return _stack(
            ctx, name, input, states, params, has_biases, num_layers, bidirectional, batch_first
        )


for _name in CELLS:
    _register(_name)


def _stack(
    ctx: Context,
    name: str,
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    """All layers: the output of the last, and the last states of each layer and direction."""
    if x.rank != 3:
        raise Unsupported("of an input without a batch", "input[:, None]")
    cell = CELLS[name]
    projected = name == "lstm" and hx[0].shape[-1] != hx[1].shape[-1]
    directions = 2 if bidirectional else 1
    weights = _weights(params, has_biases, projected)
    dtype, wide = x.dtype, "float32" if x.dtype in HALVES else x.dtype
    last: list[list[Tensor]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            first = [ctx.cast(_picked(ctx, state, number), wide) for state in hx]
            made = _layer(ctx, cell, x, first, next(weights), batch_first, reverse=direction == 1)
            made = [ctx.cast(each, dtype) for each in made]
            outputs.append(made[0])
            last.append(made[1:])
        x = concatenate(ctx, outputs, 2, dtype) if bidirectional else outputs[0]
    return [x, *(_stacked(ctx, [states[i] for states in last]) for i in range(len(hx)))]


def _weights(
    params: Sequence[Tensor], has_biases: bool, projected: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]]:
    """W_ih, W_hh, b_ih, b_hh, W_hr of each layer and direction."""
    each = 2 + 2 * has_biases + projected
    for first in range(0, len(params), each):
        found = list(params[first : first + each])
        w_hr = found.pop() if projected else None
        b_ih, b_hh = found[2:] if has_biases else (None, None)
        yield found[0], found[1], b_ih, b_hh, w_hr


def _layer(
    ctx: Context,
    cell: Cell,
    x: Tensor,
    first: Sequence[Tensor],
    weights: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None],
    batch_first: bool,
    *,
    reverse: bool,
) -> list[Tensor]:
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    hidden, width = w_hh.shape[0], w_hh.shape[1]
    if not isinstance(hidden, int) or not isinstance(width, int):
        raise Unsupported("of a size that is not constant")
    hidden //= cell.gates
    # Only a GRU needs the two biases apart: there the reset gate is applied to the second alone.
    apart = cell.name == "gru"
    bias = b_ih
    if b_ih is not None and b_hh is not None and not apart:
        bias = pointwise(ctx, "add", lambda a, b: a + b, b_ih, b_hh, dtype=x.dtype)
    dtype = first[0].dtype
    gates = ctx.cast(linear(ctx, x, w_ih, bias), dtype)
    optional = {
        "bias": ctx.cast(b_hh, dtype) if apart and b_hh is not None else None,
        "projection": None if w_hr is None else _packed(ctx, f"packed{PANEL}", w_hr, gemm.PACKING),
        "first_cell": first[1] if len(first) > 1 else None,
    }
    inputs = {
        "gates": gates,
        "weight": _packed(ctx, cell.name, w_hh, packing(cell)),
        "first": first[0],
        **{role: tensor for role, tensor in optional.items() if tensor is not None},
    }
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    output: Shape = (*x.shape[:2], width)
    results = [(output, dtype), ((batch, width), dtype)]
    if len(first) > 1:
        results.append(((batch, hidden), dtype))

    def emit(scope: Any, buffers: Any, made: Any) -> None:
        given = dict(zip(inputs, buffers, strict=True))
        operands = Operands(
            gates=given["gates"],
            weight=given["weight"],
            bias=given.get("bias"),
            projection=given.get("projection"),
            first=given["first"],
            first_cell=given.get("first_cell"),
            output=made[0],
            last=made[1],
            last_cell=made[2] if len(made) > 2 else None,
        )
        emit_layer(
            cell,
            operands,
            steps=scope.size(steps),
            batch=scope.size(batch),
            hidden=hidden,
            width=width,
            batch_first=batch_first,
            reverse=reverse,
            target=ctx.cpu,
            dtype=dtype,
        )

    ctx.templates += 1
    return ctx.procedure(cell.name, list(inputs.values()), results, emit, (steps, batch))


def _packed(ctx: Context, suffix: str, weight: Tensor, steps: Steps) -> Tensor:
    if weight.constant is None:
        raise Unsupported("with weights that are not constants")
    return ctx.derived(weight.constant, suffix, steps)


def _picked(ctx: Context, states: Tensor, number: int) -> Tensor:
    shape = states.shape[1:]

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        return tensors[0](tirx.IntImm("int64", number), *position)

    return ctx.compute("state", [states], shape, states.dtype, element)


def _stacked(ctx: Context, states: Sequence[Tensor]) -> Tensor:
    widened = [ctx.reshape(state, (1, *state.shape)) for state in states]
    return concatenate(ctx, widened, 0, states[0].dtype)
