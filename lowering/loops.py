"""Loops that stay whole: torch's ``while_loop``, ``scan`` and ``map`` as Relax functions.

The VM has calls and conditions, and no loops; and a recursion that takes one step per call would need
as deep a stack as there are steps. So a range of steps is split in two halves, which are called one
after the other, down to single steps: the stack is as deep as the logarithm. A loop whose condition
depends on data doubles: ``run(k)`` takes up to ``2**k`` steps, as ``run(k - 1)`` twice, and stops where
the condition says so. What every step gives (the results of ``scan`` and ``map``) is put together on
the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv
from tvm import IRModule, relax, tirx
from tvm.relax.expr import _update_type

from .context import Context, Unsupported, constant_tensor
from .converters.shape import concatenate
from .symbols import Shape, Size, symbols_of
from .tensor import Complex, Constant, Tensor

HIGHER = torch.ops.higher_order
LOOPS = (HIGHER.while_loop, HIGHER.scan, HIGHER.map_impl)

_DOUBLINGS = 62  # of the steps that a while_loop may take

# Lowers a body: its operands in order to its results.
Lower = Callable[[Context, torch.fx.GraphModule, Sequence[Any]], list[Tensor]]


class _Builder(relax.BlockBuilder):
    """A builder of functions that get names of their own among those of the whole module."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def add_func(self, func: Any, func_name: str) -> Any:
        return super().add_func(func, f"{self.prefix}_{func_name}")


@dataclass(frozen=True)
class _Function:
    """A function of the loop; ``weights`` are those that it takes behind its other arguments."""

    variable: Any
    weights: tuple[str, ...]


@dataclass
class _Frame:
    """The parameters of one function, as a converter sees them."""

    ctx: Context
    parameters: list[relax.Var]
    carried: list[Tensor]
    pieces: list[Tensor]
    varying: list[Tensor]


@dataclass(frozen=True)
class Made:
    """The functions of a loop, and what calling the first of them gives."""

    module: IRModule
    results: list[Tensor]


class _Loop:
    """A loop over ``carried``, which goes from step to step, ``pieces``, of which each step reads one,
    and ``fixed``, the same in every step. Constants and sizes are no parameters."""

    def __init__(
        self,
        ctx: Context,
        name: str,
        carried: Sequence[Tensor],
        pieces: Sequence[Tensor],
        fixed: Sequence[Any],
        lower: Lower,
    ) -> None:
        if any(isinstance(value, Complex) for value in (*carried, *pieces, *fixed)):
            raise Unsupported("of complex numbers", "torch.view_as_real around the loop")
        ctx.needs_cpu()  # a loop that only the host can end is refused on a GPU
        self.ctx, self.name, self.lower = ctx, name, lower
        self.carried, self.pieces, self.fixed = list(carried), list(pieces), list(fixed)
        self.builder = _Builder(name)
        self.constants: dict[str, Constant] = {}
        self.varying = [t for t in self.fixed if isinstance(t, Tensor) and t.constant is None]
        sizes = {size for t in self._tensors() for size in t.shape}
        sizes |= {v for v in self.fixed if isinstance(v, sympy.Basic)}
        self.sizes = sorted(symbols_of(sizes))

    def _tensors(self) -> list[Tensor]:
        return [*self.carried, *self.pieces, *self.varying]

    def frame(self, numbers: Sequence[str], weights: Sequence[str] = ()) -> _Frame:
        ctx = Context(self.builder, self.ctx.target, self.ctx.weights)
        names = [*numbers, *self.sizes]
        ty = relax.ShapeType([ctx.symbols.variable(name) for name in names])
        parameters = [relax.Var("numbers", ty)]
        groups = []
        for group in (self.carried, self.pieces, self.varying):
            made = []
            for tensor in group:
                kind = relax.TensorType(ctx.symbols.shape(tensor.shape), tensor.dtype)
                parameters.append(relax.Var(f"x{len(parameters)}", kind))
                made.append(Tensor(tensor.shape, tensor.dtype, parameters[-1], argument=True))
            groups.append(made)
        for name in weights:
            ctx.variable(constant_tensor(self.constants[name]))
            parameters.append(ctx.parameters[name])
        return _Frame(ctx, parameters, *groups)

    def body(
        self,
        name: str,
        numbers: Sequence[str],
        module: torch.fx.GraphModule,
        operands: Callable[[_Frame], list[Any]],
        results: Callable[[_Frame, list[Tensor]], list[Tensor]],
    ) -> _Function:
        """The function of a step: lowered from a graph, with the weights that it turns out to use."""
        frame = self.frame(numbers)
        with self.builder.function(name, private=True):
            with self.builder.dataflow():
                made = results(frame, self.lower(frame.ctx, module, operands(frame)))
                variables = [self._own(frame, each) for each in made]
                output = self.builder.emit_output(relax.Tuple(variables))
            found = tuple(frame.ctx.parameters)
            parameters = [*frame.parameters, *frame.ctx.parameters.values()]
            variable = self.builder.emit_func_output(output, parameters)
        if frame.ctx.indexing or frame.ctx.asserted:
            raise Unsupported("whose body reads or writes at positions that are data")
        unknown = set(frame.ctx.symbols.variables) - {*numbers, *self.sizes}
        if unknown:
            raise Unsupported("whose body has sizes of its own")
        for each in found:
            self.constants[each] = self.ctx.weights.kept[each]
        return _Function(variable, found)

    @staticmethod
    def _own(frame: _Frame, tensor: Tensor) -> Any:
        """A result in memory of its own: what goes in is not handed out again."""
        return frame.ctx.variable(frame.ctx.copy(tensor) if tensor.argument else tensor)

    def fixed_in(self, frame: _Frame) -> list[Any]:
        varying = iter(frame.varying)
        return [
            next(varying) if isinstance(value, Tensor) and value.constant is None else value
            for value in self.fixed
        ]

    def operands(self, frame: _Frame) -> list[Any]:
        return [*frame.carried, *self.fixed_in(frame)]

    def call(
        self,
        ctx: Context,
        function: _Function,
        numbers: Sequence[Size],
        tensors: Sequence[Tensor],
    ) -> Any:
        """A call as an expression; ``tensors`` are carried, pieces and varying ones."""
        sizes = [*numbers, *(sympy.Symbol(name, integer=True) for name in self.sizes)]
        arguments: list[Any] = [relax.ShapeExpr(ctx.symbols.shape(sizes))]
        arguments += [ctx.variable(tensor) for tensor in tensors]
        arguments += [
            ctx.variable(constant_tensor(self.constants[name])) for name in function.weights
        ]
        return relax.Call(function.variable, arguments)

    def all_of(self, frame: _Frame, carried: Sequence[Tensor] | None = None) -> list[Tensor]:
        first = frame.carried if carried is None else carried
        return [*first, *frame.pieces, *frame.varying]

    def taken(self, ctx: Context, result: Any, forms: Sequence[tuple[Shape, str]]) -> list[Tensor]:
        """The parts of a call's result, of the shapes that they have."""
        made = ctx.builder.emit(result)
        tensors = []
        for position, (shape, dtype) in enumerate(forms):
            part = ctx.builder.emit(relax.TupleGetItem(made, position))
            ty = relax.TensorType(ctx.symbols.shape(shape), dtype)
            tensors.append(Tensor(shape, dtype, ctx.builder.match_cast(part, ty)))
        return tensors

    def declared(
        self, name: str, numbers: Sequence[str], weights: Sequence[str], forms: Sequence[Any]
    ) -> _Function:
        """A function that others call before it is there."""
        frame = self.frame(numbers, weights)
        results = relax.TupleType(
            [relax.TensorType(ndim=len(shape), dtype=dtype) for shape, dtype in forms]
        )
        variable = relax.GlobalVar(f"{self.name}_{name}")
        kinds = [parameter.ty for parameter in frame.parameters]
        _update_type(variable, relax.FuncType(kinds, results, purity=True))
        return _Function(variable, tuple(weights))

    def choice(
        self,
        name: str,
        numbers: Sequence[str],
        weights: Sequence[str],
        decide: Callable[[_Frame], tuple[Any, Any, Any]],
    ) -> _Function:
        """A function that is one of two calls; ``decide`` gives the condition and both."""
        frame = self.frame(numbers, weights)
        with self.builder.function(name, private=True):
            condition, yes, no = decide(frame)
            output = self.builder.emit(relax.If(condition, yes, no))
            variable = self.builder.emit_func_output(output, frame.parameters)
        return _Function(variable, tuple(weights))

    def plain(
        self,
        name: str,
        numbers: Sequence[str],
        weights: Sequence[str],
        results: Callable[[_Frame], Sequence[Tensor]],
    ) -> _Function:
        """A function without a condition."""
        frame = self.frame(numbers, weights)
        with self.builder.function(name, private=True):
            with self.builder.dataflow():
                variables = [self._own(frame, each) for each in results(frame)]
                output = self.builder.emit_output(relax.Tuple(variables))
            variable = self.builder.emit_func_output(output, frame.parameters)
        return _Function(variable, tuple(weights))

    def finish(self, declared: _Function, function: _Function) -> IRModule:
        """The module, with a declared function in its place."""
        module = self.builder.get()
        body = module[function.variable]
        result = IRModule(
            {
                variable: each
                for variable, each in module.functions_items()
                if variable.name_hint != function.variable.name_hint
            }
        )
        result[declared.variable] = body
        return result


def _truth(ctx: Context, condition: Callable[[Any], Any]) -> Any:
    """A condition on numbers as the scalar tensor that ``If`` takes."""
    tensor = ctx.compute("decide", [], (), "bool", lambda scope, *_: condition(scope))
    return ctx.variable(tensor)


def _forms(tensors: Sequence[Tensor]) -> list[tuple[Shape, str]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _require_same(before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    if _forms(before) != _forms(after):
        raise Unsupported("whose step gives other sizes or dtypes than it takes")


def scan(
    ctx: Context,
    name: str,
    module: torch.fx.GraphModule,
    carried: Sequence[Tensor],
    pieces: Sequence[Tensor],
    fixed: Sequence[Any],
    lower: Lower,
) -> Made:
    """``module(*carried, *piece, *fixed) -> (*carried, *results)`` for each piece along the first axis
    of ``pieces``; the results are put together along a new first axis."""
    loop = _Loop(ctx, name, carried, pieces, fixed, lower)
    steps = pieces[0].shape[0]
    at, lo, hi = (sympy.Symbol(each, integer=True) for each in ("at", "lo", "hi"))
    given: list[tuple[Shape, str]] = []

    def step_operands(frame: _Frame) -> list[Any]:
        read = [
            frame.ctx.compute(
                "piece",
                [piece],
                piece.shape[1:],
                piece.dtype,
                lambda scope, x, position: x[0](scope.size(at), *position),
            )
            for piece in frame.pieces
        ]
        return [*frame.carried, *read, *loop.fixed_in(frame)]

    def step_results(frame: _Frame, made: list[Tensor]) -> list[Tensor]:
        _require_same(carried, made[: len(carried)])
        results = made[len(carried) :]
        given.extend(_forms(results))
        return [*made[: len(carried)], *(frame.ctx.reshape(r, (1, *r.shape)) for r in results)]

    step = loop.body("step", ("at",), module, step_operands, step_results)
    weights = step.weights

    def forms(count: Size) -> list[tuple[Shape, str]]:
        return [*_forms(carried), *(((count, *shape), dtype) for shape, dtype in given)]

    span = ("lo", "hi")
    run = loop.declared("run", span, weights, forms(1))
    middle = FloorDiv(lo + hi, 2)

    def halves(frame: _Frame) -> list[Tensor]:
        context = frame.ctx
        first = loop.taken(
            context, loop.call(context, run, (lo, middle), loop.all_of(frame)), forms(middle - lo)
        )
        between = first[: len(carried)]
        second = loop.taken(
            context,
            loop.call(context, run, (middle, hi), loop.all_of(frame, between)),
            forms(hi - middle),
        )
        joined = [
            concatenate(context, [a, b], 0, a.dtype)
            for a, b in zip(first[len(carried) :], second[len(carried) :], strict=True)
        ]
        return [*second[: len(carried)], *joined]

    both = loop.plain("both", span, weights, halves)

    def decide(frame: _Frame) -> tuple[Any, Any, Any]:
        context, tensors = frame.ctx, loop.all_of(frame)
        one = _truth(context, lambda scope: scope.size(hi - lo) <= tirx.IntImm("int64", 1))
        yes = loop.call(context, step, (lo,), tensors)
        return one, yes, loop.call(context, both, (lo, hi), tensors)

    module_of_loop = loop.finish(run, loop.choice("run_", span, weights, decide))
    call = loop.call(ctx, run, (0, steps), [*carried, *pieces, *loop.varying])
    return Made(module_of_loop, loop.taken(ctx, call, forms(steps)))


def while_loop(
    ctx: Context,
    name: str,
    condition: torch.fx.GraphModule,
    module: torch.fx.GraphModule,
    carried: Sequence[Tensor],
    fixed: Sequence[Any],
    lower: Lower,
) -> Made:
    """``carried = module(*carried, *fixed)`` for as long as ``condition(*carried, *fixed)`` holds."""
    loop = _Loop(ctx, name, carried, [], fixed, lower)
    forms = _forms(carried)

    def body_results(_: _Frame, made: list[Tensor]) -> list[Tensor]:
        _require_same(carried, made)
        return made

    def bool_scalar(frame: _Frame, made: list[Tensor]) -> list[Tensor]:
        return [frame.ctx.cast(frame.ctx.reshape(made[0], ()), "bool")]

    goes_on = loop.body("goes_on", (), condition, loop.operands, bool_scalar)
    body = loop.body("body", (), module, loop.operands, body_results)
    weights = tuple(dict.fromkeys((*goes_on.weights, *body.weights)))
    power = sympy.Symbol("power", integer=True)

    def holds(frame: _Frame, tensors: Sequence[Tensor]) -> Any:
        (value,) = loop.taken(
            frame.ctx,
            loop.call(frame.ctx, goes_on, (), loop.all_of(frame, tensors)),
            [((), "bool")],
        )
        return frame.ctx.variable(value)

    def as_they_are(frame: _Frame, tensors: Sequence[Tensor]) -> Any:
        return relax.Tuple([frame.ctx.variable(tensor) for tensor in tensors])

    def once(frame: _Frame) -> tuple[Any, Any, Any]:
        yes = loop.call(frame.ctx, body, (), loop.all_of(frame))
        return holds(frame, frame.carried), yes, as_they_are(frame, frame.carried)

    one = loop.choice("once", (), weights, once)
    run = loop.declared("run", ("power",), weights, forms)

    def again(frame: _Frame) -> tuple[Any, Any, Any]:
        context = frame.ctx
        first = loop.taken(
            context, loop.call(context, run, (power - 1,), loop.all_of(frame)), forms
        )
        second = loop.call(context, run, (power - 1,), loop.all_of(frame, first))
        return holds(frame, first), second, as_they_are(frame, first)

    twice = loop.choice("twice", ("power",), weights, again)

    def decide(frame: _Frame) -> tuple[Any, Any, Any]:
        context, tensors = frame.ctx, loop.all_of(frame)
        last = _truth(context, lambda scope: scope.size(power) <= tirx.IntImm("int64", 0))
        yes = loop.call(context, one, (), tensors)
        return last, yes, loop.call(context, twice, (power,), tensors)

    module_of_loop = loop.finish(run, loop.choice("run_", ("power",), weights, decide))
    tensors = [ctx.copy(tensor) if tensor.argument else tensor for tensor in carried]
    call = loop.call(ctx, run, (_DOUBLINGS,), [*tensors, *loop.varying])
    return Made(module_of_loop, loop.taken(ctx, call, forms))
