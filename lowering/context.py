"""What a converter works with: it emits kernels and views, and gets tensors back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from tvm import relax, te, tirx
from tvm.ir import Op
from tvm.tirx.script.builder import ir as T

from ..artifacts.recipes import FLOATS, Steps
from .asserted import Asserted
from .broadcasting import broadcast_index
from .dtypes import convert
from .in_place import PREFILLED
from .kernels.prim_func import dim, param, prim_func
from .layout import joins_pixels, to_first, to_last
from .own_ops import OwnKernel
from .symbols import Shape, Size, Symbols, as_size, product, symbols_of
from .targets import CpuTarget, Target
from .tensor import PARTS, TORCH_DTYPES, Codes, Complex, Constant, Tensor, part_of
from .weights import WeightStore

Build = Callable[..., te.Tensor]
Emit = Callable[[Symbols, list[tirx.Buffer], list[tirx.Buffer]], None]

_RESHAPE = Op.get("relax.reshape")
_OPAQUE = 8  # FuseOps leaves a function of this pattern alone
_SMALL = 1 << 14  # elements of a constant that is converted at export, in a copy of its own


class Unsupported(Exception):
    """This use of an op cannot be lowered. ``tries`` names the nearest form that can."""

    def __init__(self, reason: str = "", tries: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.tries = tries


@dataclass
class Context:
    """The state of one lowering of a graph for one target.

    While ``wide``, a converter works on float32 in the place of half-precision floats; what it is
    given is converted before, and what it gives is rounded after. ``channels_last`` are the
    convolutions that work on NHWC, ``moved`` what is there in another order, by variable and order;
    ``coded`` are the nodes that make floats of int8 weights.
    """

    builder: relax.BlockBuilder
    target: Target
    weights: WeightStore
    symbols: Symbols = field(default_factory=Symbols)
    parameters: dict[str, relax.Var] = field(default_factory=dict)
    indexing: list[str] = field(default_factory=list)
    asserted: list[Asserted] = field(default_factory=list)
    first_asserted: int = 0  # the number of the first one
    computed: set[str] = field(default_factory=set)
    channels_last: frozenset[torch.fx.Node] = frozenset()
    coded: frozenset[torch.fx.Node] = frozenset()
    moved: dict[tuple[relax.Var, tuple[int, ...]], relax.Var] = field(default_factory=dict)
    templates: int = 0  # calls of kernel templates so far
    node: torch.fx.Node | None = None
    own: Sequence[OwnKernel] = ()
    wide: bool = False

    # What the code is for.

    @property
    def on_gpu(self) -> bool:
        return not isinstance(self.target, CpuTarget)

    @property
    def cpu(self) -> CpuTarget:
        """The CPU that a kernel is written for.

        Raises:
            Unsupported: the code is for a GPU, and this kernel is not.
        """
        if not isinstance(self.target, CpuTarget):
            raise Unsupported("on a GPU: it has a kernel for the CPU only", "--target cpu")
        return self.target

    def needs_cpu(self) -> None:
        """Refuse, as `cpu` does, what only code for a CPU can do."""
        _ = self.cpu

    # The result that the trace promises.

    def expected(self, index: int | None = None) -> Any:
        """The fake tensor that the trace has for the node's result (or for one of several); of a
        complex one, what either of its parts is."""
        assert self.node is not None
        value = self.node.meta["val"]
        if index is not None:
            value = value[index]
        return part_of(value) if isinstance(value, torch.Tensor) else value

    def asserts(self, what: str) -> str:
        """The message of an assertion in a kernel: ``what`` must hold of the data for this node. It
        becomes a check of the contract, which gives the user's words for it."""
        assert self.node is not None
        number = self.first_asserted + len(self.asserted)
        self.asserted.append(Asserted(number, self.node.name, what))
        return f"tcexport check {number}: {what}"

    # Emitting.

    def variable(self, tensor: Tensor) -> relax.Var:
        """The Relax variable of a tensor; for a constant this makes it an argument."""
        if tensor.variable is not None:
            return tensor.variable
        if tensor.last is not None:
            return self._moved(tensor.last, self.with_channels_last(tensor), to_first(tensor.rank))
        if tensor.codes is not None:
            return self._decoded(tensor)
        assert tensor.constant is not None
        name = tensor.constant.name
        if name not in self.parameters:
            self.weights.keep(tensor.constant)
            ty = relax.TensorType(self.symbols.shape(tensor.shape), tensor.dtype)
            self.parameters[name] = relax.Var(f"w{len(self.parameters)}", ty)
        return self.parameters[name]

    def codes_of(self, tensor: Tensor) -> Codes | None:
        """A constant of int8 that is a weight, or a matrix that is too large to be kept as floats."""
        constant = tensor.constant
        if constant is None or tensor.dtype != "int8":
            return None
        large = tensor.rank == 2 and constant.value.numel() > _SMALL
        return Codes(constant) if large or self.node in self.coded else None

    def _decoded(self, tensor: Tensor) -> relax.Var:
        """The floats that codes stand for, anew for each use: they are there for products."""
        codes = tensor.codes
        assert codes is not None
        operands, scale = [constant_tensor(codes.constant)], codes.scale
        if isinstance(scale, Tensor):
            operands.append(scale)

        def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
            value = convert(tensors[0](*position), tensor.dtype)
            if scale is None:
                return value
            if isinstance(scale, Tensor):
                return value * tensors[1](position[0])
            return value * scope.number(scale, tensor.dtype)

        return self.compute("decode", operands, tensor.shape, tensor.dtype, element).variable

    def with_channels_last(self, tensor: Tensor) -> Tensor:
        """An image as a tensor ``[n, h, w, c]`` of its own; a copy where it is not there yet."""
        order = to_last(tensor.rank)
        shape = tuple(tensor.shape[axis] for axis in order)
        variable = tensor.last
        if variable is None:
            variable = self._moved(self.variable(tensor), tensor, order)
        return Tensor(shape, tensor.dtype, variable, argument=tensor.argument)

    def as_image(self, tensor: Tensor) -> Tensor:
        """What is there as ``[n, h, w, c]``, as the graph knows it: ``[n, c, h, w]``."""
        shape = tuple(tensor.shape[axis] for axis in to_first(tensor.rank))
        last = self.variable(tensor)
        return Tensor(shape, tensor.dtype, argument=tensor.argument, last=last)

    def _moved(self, variable: relax.Var, tensor: Tensor, order: Sequence[int]) -> relax.Var:
        """``variable``, which ``tensor`` is, with its axes in another order; copied once."""
        if (variable, tuple(order)) not in self.moved:
            back = tuple(list(order).index(axis) for axis in range(tensor.rank))
            shape = tuple(tensor.shape[axis] for axis in order)
            moving = [axis for axis in order if tensor.shape[axis] != 1]
            if moving == sorted(moving):  # only axes of one element move
                copy = self.variable(self.reshape(tensor, shape))
            else:
                moved = self.compute(
                    "permute",
                    [tensor],
                    shape,
                    tensor.dtype,
                    lambda _, x, position: x[0](*(position[axis] for axis in back)),
                )
                copy = self.variable(moved)
            self.moved[variable, tuple(order)] = copy
            self.moved[copy, back] = variable
        return self.moved[variable, tuple(order)]

    def kernel(
        self, name: str, build: Build, inputs: Sequence[Tensor], shape: Shape, dtype: str
    ) -> Tensor:
        """Emit a kernel that is given as a tensor expression.

        ``build`` gets the symbols of the kernel and a TE placeholder for each input and returns the
        TE result. A kernel has variables of its own: it shares none with the graph around it.
        """
        scope = Symbols()
        placeholders = [
            te.placeholder(scope.shape(tensor.shape), tensor.dtype, name=f"x{position}")
            for position, tensor in enumerate(inputs)
        ]
        result = build(scope, *placeholders)
        if str(result.dtype) != dtype:
            raise TypeError(f"{name}: the kernel gives {result.dtype}, not {dtype}")
        bound = {
            size
            for tensor in (*placeholders, result)
            for size in tensor.shape
            if isinstance(size, tirx.Var)
        }
        # Sorted, so that equal graphs give equal bytes.
        free = [name for name in sorted(scope.variables) if scope.variables[name] not in bound]
        function = te.create_prim_func(
            [*placeholders, *(scope.variables[name] for name in free), result], "int64"
        ).without_attr("global_symbol")
        sized = symbols_of(size for tensor in inputs for size in tensor.shape) | symbols_of(shape)
        made_of_sizes = not inputs and bool(sized)
        if made_of_sizes or (sized & set(free) and not set(free) <= sized):
            # FuseTIR maps a size twice where one function takes it with other numbers than the next.
            function = function.with_attr("op_pattern", _OPAQUE)
        arguments = [self.variable(tensor) for tensor in inputs]
        arguments += [self.symbols.variable(name) for name in free]
        return self._call(name, function, arguments, shape, dtype)

    def call(
        self,
        name: str,
        function: tirx.PrimFunc,
        inputs: Sequence[Tensor],
        shape: Shape,
        dtype: str = "float32",
    ) -> Tensor:
        """Emit a call of a kernel template: its parameters are ``inputs`` and one result.

        Raises:
            Unsupported: the code is for a GPU.
        """
        self.needs_cpu()
        self.templates += 1
        return self._call(name, function, [self.variable(t) for t in inputs], shape, dtype)

    def launch(
        self,
        name: str,
        function: tirx.PrimFunc,
        inputs: Sequence[Tensor],
        shape: Shape,
        dtype: str,
    ) -> Tensor:
        """The same for a kernel that `cuda.launch` made, which is for a GPU."""
        (made,) = self.launch_all(name, function, inputs, [(shape, dtype)])
        return made

    def launch_all(
        self,
        name: str,
        function: tirx.PrimFunc,
        inputs: Sequence[Tensor],
        results: Sequence[tuple[Shape, str]],
    ) -> list[Tensor]:
        """The same for several results: the shape and dtype of each."""
        assert self.on_gpu
        self.templates += 1
        return self._results(name, function, [self.variable(t) for t in inputs], results)

    def call_with(
        self,
        name: str,
        function: tirx.PrimFunc,
        inputs: Sequence[Tensor],
        numbers: Sequence[tirx.Var],
        shape: Shape,
        dtype: str,
    ) -> Tensor:
        """The same for a template that takes numbers, too, between the inputs and the result."""
        self.needs_cpu()
        arguments = [*(self.variable(tensor) for tensor in inputs), *numbers]
        return self._call(name, function, arguments, shape, dtype)

    def procedure(
        self,
        name: str,
        inputs: Sequence[Tensor],
        results: Sequence[tuple[Shape, str]],
        emit: Emit,
        sizes: Sequence[Size] = (),
        *,
        prefilled: bool = False,
        anywhere: bool = False,
    ) -> list[Tensor]:
        """Emit a kernel that is given as loops: ``emit(scope, inputs, results)`` writes its body.

        It has a buffer for each of ``inputs`` and of ``results`` (shape and dtype). ``sizes``: what
        it takes from the scope besides the sizes of those. ``prefilled``: see `in_place`. ``anywhere``:
        for a GPU its body launches kernels, see `cuda.launch`.

        Raises:
            Unsupported: the code is for a GPU, and the body is not.
        """
        if not anywhere:
            self.needs_cpu()
        scope = Symbols()
        numbers: list[str] = []

        def extent(size: Size) -> Any:
            # What is made of several symbols gets a name of its own: one of them may be bound by
            # a later buffer only.
            return scope.size(size) if isinstance(size, (int, sympy.Symbol)) else dim(None, "n")

        def declare() -> Callable[[], None]:
            shapes = [tensor.shape for tensor in inputs] + [shape for shape, _ in results]
            extents = [[extent(size) for size in shape] for shape in shapes]
            bound = {size for shape in extents for size in shape if isinstance(size, tirx.Var)}
            for sizes_used in (*shapes, tuple(sizes)):
                scope.shape(sizes_used)
            # Sorted, so that equal graphs give equal bytes.
            numbers.extend(n for n in sorted(scope.variables) if scope.variables[n] not in bound)
            dtypes = [tensor.dtype for tensor in inputs] + [dtype for _, dtype in results]
            buffers = []
            for position, (shape, dtype) in enumerate(zip(extents, dtypes, strict=True)):
                if position == len(inputs):
                    for number in numbers:
                        T.arg(number, scope.variables[number])
                buffers.append(param(f"x{position}", shape, dtype))
            return lambda: emit(scope, buffers[: len(inputs)], buffers[len(inputs) :])

        function = prim_func(name, declare)
        if prefilled:
            function = function.with_attr(PREFILLED, 1)
        arguments = [self.variable(tensor) for tensor in inputs]
        arguments += [self.symbols.variable(number) for number in numbers]
        return self._results(name, function, arguments, results)

    def _results(
        self,
        name: str,
        function: tirx.PrimFunc,
        arguments: list[Any],
        results: Sequence[tuple[Shape, str]],
    ) -> list[Tensor]:
        types = [relax.TensorType(self.symbols.shape(shape), dtype) for shape, dtype in results]
        call = relax.call_tir(self.builder.add_func(function, name), arguments, types)
        made = self.builder.emit(call)
        if len(results) == 1:
            return [Tensor(*results[0], made)]
        return [
            Tensor(shape, dtype, self.builder.emit(relax.TupleGetItem(made, position)))
            for position, (shape, dtype) in enumerate(results)
        ]

    def update(
        self,
        name: str,
        state: Tensor,
        operands: Sequence[Tensor],
        emit: Emit,
        sizes: Sequence[Size],
    ) -> Tensor:
        """Emit a kernel that writes to some elements of a state: ``emit`` as for `procedure`, for a GPU
        too, where ``results[0]`` holds the old values and ``inputs[0]`` is not to be read."""
        made = [(state.shape, state.dtype)]
        (result,) = self.procedure(
            name, [state, *operands], made, emit, sizes, prefilled=True, anywhere=True
        )
        return replace(result, argument=True, state=state.state)

    def _call(
        self, name: str, function: tirx.PrimFunc, arguments: list[Any], shape: Shape, dtype: str
    ) -> Tensor:
        global_variable = self.builder.add_func(function, name)
        ty = relax.TensorType(self.symbols.shape(shape), dtype)
        variable = self.builder.emit(relax.call_tir(global_variable, arguments, ty))
        return Tensor(shape, dtype, variable)

    def compute(
        self,
        name: str,
        inputs: Sequence[Tensor],
        shape: Shape,
        dtype: str,
        element: Callable[..., Any],
    ) -> Tensor:
        """Emit a kernel with one element per position: ``element(scope, inputs, position)``."""
        if not shape:  # a stage without loops is none that `schedule_rest` knows
            one = self.compute(
                name, inputs, (1,), dtype, lambda scope, tensors, _: element(scope, tensors, ())
            )
            return self.reshape(one, ())

        def build(scope: Symbols, *placeholders: te.Tensor) -> te.Tensor:
            return te.compute(
                scope.shape(shape),
                lambda *position: element(scope, placeholders, position),
                name=name,
            )

        return self.kernel(name, build, inputs, shape, dtype)

    def compute_image(
        self,
        name: str,
        inputs: Sequence[Tensor],
        shape: Shape,
        dtype: str,
        element: Callable[..., Any],
    ) -> Tensor:
        """The same of images, all of one rank: in whichever order they lie. ``element`` is given, and
        reads at, positions of NCHW."""
        if all(tensor.last is None for tensor in inputs):
            return self.compute(name, inputs, shape, dtype, element)
        order, back = to_last(len(shape)), to_first(len(shape))

        def turned(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
            def reader(tensor: Any) -> Callable[..., Any]:
                return lambda *at: tensor(*(at[axis] for axis in order))

            readers = [reader(tensor) for tensor in tensors]
            return element(scope, readers, tuple(position[axis] for axis in back))

        moved = [self.with_channels_last(tensor) for tensor in inputs]
        turned_shape = tuple(shape[axis] for axis in order)
        return self.as_image(self.compute(name, moved, turned_shape, dtype, turned))

    def reshape(self, tensor: Tensor, shape: Shape) -> Tensor:
        """The same elements, row-major, with other sizes: a view, no copy."""
        shape = tuple(as_size(size) for size in shape)
        if shape == tensor.shape:
            return tensor
        if tensor.constant is not None and all(isinstance(size, int) for size in shape):
            sizes = "x".join(str(size) for size in shape)
            value = tensor.constant.value.reshape(shape)
            name = f"{tensor.constant.name}:{sizes}"
            return constant_tensor(tensor.constant.stepped(name, value, "reshape", shape))
        if 0 in shape:  # which Relax takes for "as it was"; there is nothing to be moved
            return self.zeros(shape, tensor.dtype)
        if tensor.last is not None and joins_pixels(tensor.shape, shape):
            # The pixels of an image in one axis, or in two again: its channels stay the last.
            turned = tuple(shape[axis] for axis in to_last(len(shape)))
            return self.as_image(self.reshape(self.with_channels_last(tensor), turned))
        variable = self.builder.emit(
            relax.op.reshape(self.variable(tensor), relax.ShapeExpr(self.symbols.shape(shape)))
        )
        return replace(tensor, shape=shape, variable=variable, constant=None, last=None, codes=None)

    def zeros(self, shape: Shape, dtype: str) -> Tensor:
        return self.compute("zeros", [], shape, dtype, lambda *_: tirx.const(0, dtype))

    def rows(self, tensor: Tensor) -> Tensor:
        """``[..., n]`` as a matrix ``[rows, n]``."""
        return self.reshape(tensor, (product(tensor.shape[:-1]), tensor.shape[-1]))

    def memory_of(self, variable: relax.Var) -> relax.Var:
        """The variable in whose memory another one lies: before reshapes."""
        while True:
            value = self.builder.lookup_binding(variable)
            if isinstance(value, relax.Var):
                variable = value
            elif isinstance(value, relax.Call) and value.op == _RESHAPE:
                variable = value.args[0]
            else:
                return variable

    def copy(self, tensor: Tensor) -> Tensor:
        """The same elements in memory of their own."""
        return self.compute(
            "copy", [tensor], tensor.shape, tensor.dtype, lambda _, x, position: x[0](*position)
        )

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        if tensor.dtype == dtype:
            return tensor
        constant = tensor.constant
        codes = self.codes_of(tensor) if dtype in FLOATS else None
        if codes is not None:
            return Tensor(tensor.shape, dtype, codes=codes)
        if constant is not None and constant.value.numel() <= _SMALL:
            value = constant.value.to(TORCH_DTYPES[dtype])
            name = f"{constant.name}:{dtype}"
            if tensor.dtype in FLOATS and dtype in FLOATS:
                return constant_tensor(constant.stepped(name, value, "cast", dtype))
            self.weights.freeze(constant, f"taken as {dtype}")
            return constant_tensor(Constant(name, value, None, constant.sources))
        if tensor.last is not None:
            return self.as_image(self.cast(self.with_channels_last(tensor), dtype))
        return self.compute(
            "cast",
            [tensor],
            tensor.shape,
            dtype,
            lambda _, x, position: convert(x[0](*position), dtype),
        )

    def stretch(self, tensor: Tensor, shape: Shape) -> Tensor:
        """``tensor`` with its axes of size 1 widened, and axes put in front, to ``shape``."""
        if tensor.shape == shape:
            return tensor

        def element(_: Any, x: Any, position: tuple[Any, ...]) -> Any:
            return x[0](*broadcast_index(tensor.shape, position))

        return self.compute("widen", [tensor], shape, tensor.dtype, element)

    def bind_size(self, size: Size, value: Tensor) -> None:
        """Let a symbol of the trace be what a kernel computed: ``value``, ``[1]`` of int64.

        Raises:
            Unsupported: the code is for a GPU, or the size is no symbol.
        """
        self.needs_cpu()
        if not isinstance(size, sympy.Symbol):
            raise Unsupported(f"with {size} elements, which is no size of its own")
        made = self.builder.emit(
            relax.call_pure_packed(
                "vm.builtin.tensor_to_shape",
                self.variable(value),
                ty_args=[relax.ShapeType(ndim=1)],
            )
        )
        ty = relax.ShapeType([self.symbols.variable(size.name)])
        self.builder.match_cast(made, ty)
        self.computed.add(size.name)

    # Constants.

    def derived(self, constant: Constant, suffix: str, steps: Steps) -> Tensor:
        """A weight in another form, made once at export by steps of `recipes`: packed, transposed."""
        return constant_tensor(self.weights.derive(f"{constant.name}:{suffix}", constant, steps))


def constant_value(constant: Constant) -> Tensor | Complex:
    """A constant as the graph has it, in two parts where it is complex."""
    if constant.value.dtype not in PARTS:
        return constant_tensor(constant)
    parts = torch.view_as_real(constant.value.resolve_conj().resolve_neg())
    re, im = (
        constant_tensor(Constant(f"{constant.name}:{name}", part.contiguous()))
        for name, part in zip(("re", "im"), parts.unbind(-1), strict=True)
    )
    return Complex(re, im)


def constant_tensor(constant: Constant) -> Tensor:
    dtype = str(constant.value.dtype).removeprefix("torch.")
    return Tensor(tuple(constant.value.shape), dtype, constant=constant, argument=True)
