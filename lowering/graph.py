"""The importer: an FX graph becomes a Relax function, node by node, each held against the trace."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from tvm import IRModule, relax

from ..artifacts.errors import Diagnostic, ExportError
from . import coded, epilogue, layout, regions
from .answer import Called, Looked, Surveyed
from .assumed import Assumed
from .checks import CHECK_INDEX, REQUIRE, free_number
from .context import Context, Unsupported, constant_value
from .converters.complex import apart, together
from .converters.convolution import with_epilogue
from .converters.linear import linear
from .converters.nonzero import is_computed
from .converters.norm import layer_norm
from .converters.registry import bind, convert_node
from .converters.scatter import write_part
from .flops import flops
from .folding import fold
from .in_place import keeping_states
from .locations import user_location
from .loops import HIGHER, LOOPS, scan, while_loop
from .ops import CHECKS
from .own_ops import OwnKernel
from .states import states
from .survey import OpUse, Use, refusals, table
from .symbols import NoForm, as_shape, as_size, same
from .targets import GpuTarget, Target
from .tensor import DTYPES, PARTS, Complex, Constant, Part, Tensor, part_of
from .variants import GENERAL, Variant, with_sizes
from .weights import WeightStore

ITEMS = ("aten._local_scalar_dense.default", "aten.item.default")


@dataclass(frozen=True)
class BuiltGraph:
    """A Relax module, and how the function is called that was added to it last.

    ``folded``: the nodes that were computed at export.
    """

    module: IRModule
    called: Called
    ops: tuple[OpUse, ...]
    folded: frozenset[str]
    loops: tuple[IRModule, ...] = ()


def build(
    program: torch.export.ExportedProgram,
    constants: Mapping[str, Constant],
    target: Target,
    weights: WeightStore,
    own: Sequence[OwnKernel] = (),
    variant: Variant = GENERAL,
    builder: relax.BlockBuilder | None = None,
) -> BuiltGraph:
    """Lower a decomposed program to Relax for one target.

    Args:
        constants: by the names of their placeholders.
        weights: takes the constants that are used.
        own: kernels for ops that are not torch's.
        variant: what the function is called, and which sizes are numbers in it.
        builder: that of the functions before, to go into one module with them: equal kernels are
            there once.

    Raises:
        ExportError: ops that have no converter, all of them (TC501); a result that is not what the
            trace says (TC502).
    """
    builder = builder or relax.BlockBuilder()
    with with_sizes(program, variant.sizes):
        return _Importer(program, constants, target, weights, own, variant, builder).run()


def finished(builder: relax.BlockBuilder, functions: Mapping[str, BuiltGraph]) -> IRModule:
    """The module of all functions that were added to a builder."""
    loops = [loop for built in functions.values() for loop in built.loops]
    # What finishes a module does not know functions that are added to it afterwards.
    module = builder.get() if loops else builder.finalize()
    for loop in loops:
        module.update(loop)
    for name, built in functions.items():
        called = built.called
        if called.states:
            first = len(called.inputs) + bool(called.sizes)
            module = keeping_states(module, name, range(first, first + len(called.states)))
    return module


def survey(
    program: torch.export.ExportedProgram,
    constants: Mapping[str, Constant],
    target: Target,
    own: Sequence[OwnKernel] = (),
    sizes: Mapping[str, int] | None = None,
) -> Surveyed:
    """What `build` would say of a decomposed program, op by op; with ``sizes`` of torch's symbols as
    numbers.

    Raises:
        ExportError: TC502, as `build`.
    """
    builder = relax.BlockBuilder()
    with with_sizes(program, sizes or {}):
        return _Importer(program, constants, target, WeightStore(), own, GENERAL, builder).survey()


class _Importer:
    def __init__(
        self,
        program: torch.export.ExportedProgram,
        constants: Mapping[str, Constant],
        target: Target,
        weights: WeightStore,
        own: Sequence[OwnKernel],
        variant: Variant,
        builder: relax.BlockBuilder,
    ) -> None:
        self.graph = program.graph
        self.graph_module = program.graph_module
        self.signature = program.graph_signature
        self.constants = constants
        self.variant = variant
        on_gpu = isinstance(target, GpuTarget)
        # What the kernels of a GPU multiply by is floats.
        weights_in_codes = frozenset() if on_gpu else coded.find(program.graph, constants)
        self.ctx = Context(
            builder,
            target,
            weights,
            channels_last=layout.find(
                program.graph, constants, coded=weights_in_codes, on_gpu=on_gpu
            ),
            coded=weights_in_codes,
            own=own,
        )
        self.ctx.first_asserted = free_number(program.graph)
        self.loops: list[IRModule] = []
        self.values: dict[torch.fx.Node, Any] = {}
        self.inputs: dict[int, relax.Var] = {}
        self.bound: set[str] = set()
        self.unsupported: list[tuple[torch.fx.Node, Unsupported]] = []
        self.refused_floats: set[sympy.Symbol] = set()
        self.fast: set[torch.fx.Node] = set()
        self.folded: set[torch.fx.Node] = set()
        self.states = states(program)
        self.state_variables: dict[str, relax.Var] = {}
        self.regions = regions.find(program.graph) if self.states else {}
        self.epilogues = epilogue.find(program.graph, constants, coded=weights_in_codes)
        self.absorbed = {node for found in self.epilogues.values() for node in found.inner}

    def run(self) -> BuiltGraph:
        builder = self.ctx.builder
        with builder.function(self.variant.function):
            with builder.dataflow():
                self._nodes()
                if self.unsupported:
                    raise ExportError(refusals(table(self._uses())))
                results = self._results()
                states = [*self._new_states()]
                alone = len(results) == 1 and not states
                output = builder.emit_output(
                    results[0] if alone else relax.Tuple([*results, *states])
                )
            known = self.bound | self.ctx.computed
            sizes = tuple(sorted(set(self.ctx.symbols.variables) - known))
            parameters = list(self.inputs.values())
            if sizes:
                values = [self.ctx.symbols.variable(name) for name in sizes]
                parameters.append(relax.Var("sizes", relax.ShapeType(values)))
            parameters += [self.state_variables[state.name] for state in self.states]
            parameters += self.ctx.parameters.values()
            builder.emit_func_output(output, parameters)
        return BuiltGraph(
            module=builder.get(),
            called=Called(
                self.variant.function,
                inputs=tuple(self.inputs),
                sizes=sizes,
                states=tuple(state.name for state in self.states),
                weights=tuple(self.ctx.parameters),
                results=len(results),
                indexing=tuple(dict.fromkeys(self.ctx.indexing)),
                asserted=tuple(self.ctx.asserted),
            ),
            ops=table(self._uses()),
            folded=frozenset(node.name for node in self.folded),
            loops=tuple(self.loops),
        )

    def survey(self) -> Surveyed:
        with self.ctx.builder.function(GENERAL.function):
            with self.ctx.builder.dataflow():
                self._nodes()
                output = self.ctx.builder.emit_output(relax.Tuple([]))
            self.ctx.builder.emit_func_output(output, list(self.inputs.values()))
        ops, indexing = table(self._uses()), tuple(dict.fromkeys(self.ctx.indexing))
        looked = Looked(indexing, tuple(self.ctx.asserted))
        return Surveyed(ops, refusals(ops), (looked,))

    def _nodes(self) -> None:
        self._placeholders()
        assumed = Assumed(self.graph)
        for node in self.graph.nodes:
            if node.op == "call_function":
                self._call(node)
                assumed.require_no_more(node)

    def _uses(self) -> Iterator[Use]:
        """What became of each op; sizes and what is only looked at are no ops."""
        refused: dict[torch.fx.Node, list[Unsupported]] = {}
        for node, error in self.unsupported:
            refused.setdefault(node, []).append(error)
        # A part of a kernel is as fast as the whole, which is kept under its last node.
        whole = {part: last for last, found in self.epilogues.items() for part in found.inner}
        for node in self.graph.nodes:
            if node in refused:
                yield from (Use(node, error) for error in refused[node])
            elif _is_op(node):
                fast, folded = whole.get(node, node) in self.fast, node in self.folded
                on_data = _is_on_data(node)
                count = 0 if folded or on_data else flops(node)
                yield Use(node, None, fast, folded, on_data, count)

    # Ends of the graph.

    def _placeholders(self) -> None:
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        specs = self.signature.input_specs
        index = 0
        held = {state.placeholder: state for state in self.states}
        for node, spec in zip(placeholders, specs, strict=True):
            if node.name in held:
                self.values[node] = self._state(node, held[node.name].name)
                continue
            if spec.kind is not InputKind.USER_INPUT:
                self.values[node] = constant_value(self.constants[node.name])
                continue
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self.values[node] = self._input(node, value, index)
            elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                self.values[node] = as_size(value)
            else:
                self.values[node] = getattr(spec.arg, "value", value)
            index += 1

    def _input(self, node: torch.fx.Node, value: torch.Tensor, index: int) -> Tensor | Complex:
        if value.dtype in PARTS:
            return self._complex_input(value, index)
        if value.dtype not in DTYPES:
            self.unsupported.append((node, Unsupported(f"of dtype {value.dtype}")))
            return Tensor(as_shape(value.shape), "float32", argument=True)
        dtype, shape = DTYPES[value.dtype], as_shape(value.shape)
        ty = relax.TensorType(self.ctx.symbols.shape(shape), dtype)
        variable = relax.Var(f"x{index}", ty)
        self.inputs[index] = variable
        self.bound |= {size.name for size in shape if isinstance(size, sympy.Symbol)}
        return Tensor(shape, dtype, variable, argument=True, source=index)

    def _complex_input(self, value: torch.Tensor, index: int) -> Complex:
        """A complex input comes as real numbers with a last axis of two: the parts of each element."""
        shape, dtype = as_shape(value.shape), DTYPES[PARTS[value.dtype]]
        variable = relax.Var(
            f"x{index}", relax.TensorType(self.ctx.symbols.shape((*shape, 2)), dtype)
        )
        self.inputs[index] = variable
        self.bound |= {size.name for size in shape if isinstance(size, sympy.Symbol)}
        return apart(self.ctx, Tensor((*shape, 2), dtype, variable, argument=True))

    def _state(self, node: torch.fx.Node, name: str) -> Any:
        value = node.meta["val"]
        if value.dtype not in DTYPES:
            self.unsupported.append((node, Unsupported(f"as state of dtype {value.dtype}")))
            return self._stand_in(node)
        dtype, shape = DTYPES[value.dtype], as_shape(value.shape)
        ty = relax.TensorType(self.ctx.symbols.shape(shape), dtype)
        variable = self.state_variables[name] = relax.Var(f"s{len(self.state_variables)}", ty)
        return Tensor(shape, dtype, variable, argument=True, state=name)

    def _outputs(self, kind: OutputKind) -> Iterator[Any]:
        output = next(node for node in self.graph.nodes if node.op == "output")
        specs = self.signature.output_specs
        for value, spec in zip(output.args[0], specs, strict=True):
            if spec.kind is kind:
                yield self._read(value)

    def _results(self) -> list[relax.Var]:
        """The tensors among the outputs, in order, none in memory that is the caller's or another
        result's: who writes to one must not change the other, even where eager's share memory."""
        results: list[relax.Var] = []
        taken: list[relax.Var] = []
        for value in self._outputs(OutputKind.USER_OUTPUT):
            if isinstance(value, Complex):
                value = together(self.ctx, value)
            if not isinstance(value, Tensor):
                continue
            if value.argument:
                value = self.ctx.copy(value)
            memory = self.ctx.memory_of(self.ctx.variable(value))
            if any(memory.same_as(other) for other in taken):
                value = self.ctx.copy(value)
                memory = self.ctx.variable(value)
            taken.append(memory)
            results.append(self.ctx.variable(value))
        return results

    def _new_states(self) -> Iterator[relax.Var]:
        """What each state is after the call; none in the memory of another."""
        values = self._outputs(OutputKind.BUFFER_MUTATION)
        for state, value in zip(self.states, values, strict=True):
            if value.argument and value.state != state.name:
                value = self.ctx.copy(value)
            yield self.ctx.variable(value)

    # Nodes.

    def _call(self, node: torch.fx.Node) -> None:
        if str(node.target) in CHECKS or node in self.absorbed:
            return
        if node.target is operator.getitem and not node.users:
            return
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            self.values[node] = self._scalar(node, value)
            return
        if node.target is operator.getitem and node not in self.epilogues:
            result = self.values[node.args[0]][node.args[1]]
            if result is None:
                self.unsupported.append(
                    (node.args[0], Unsupported(f"with its result number {node.args[1]}"))
                )
                result = self._stand_in(node)
            self.values[node] = result
            return
        try:
            if node.target in LOOPS:
                result = self._loop(node)
            else:
                result = self._computed(node)
        except (Unsupported, NoForm) as error:
            reason = error if isinstance(error, Unsupported) else Unsupported(f"with {error}")
            self.unsupported.append((node, reason))
            self.values[node] = self._stand_in(node)
            return
        if isinstance(result, list):
            self.values[node] = [
                None if part is None else self._held(node, part, fake)
                for part, fake in zip(result, value, strict=True)
            ]
        else:
            self.values[node] = self._held(node, result, value)

    def _computed(self, node: torch.fx.Node) -> Any:
        """What an op gives: at export where all of its operands are constants, else in the call."""
        folded = None
        if node not in self.epilogues:  # which read what stands within, of which nothing is kept
            folded = fold(self.ctx, self.variant, node, self._read)
        if folded is not None:
            self.folded.add(node)
            return folded
        before = self.ctx.templates
        result = self._emit(node)
        if self.ctx.templates > before:
            self.fast.add(node)
        return result

    def _scalar(self, node: torch.fx.Node, value: Any) -> Any:
        """A number of the trace, from its own expression. An integer that is read out of a tensor is
        bound here; that of an input is one that the caller passes."""
        if str(node.target) in ITEMS:
            try:
                self._item(node, value)
            except Unsupported as error:
                self.unsupported.append((node, error))
                if isinstance(value, torch.SymFloat):
                    self.refused_floats |= value.node.expr.free_symbols
        if isinstance(value, torch.SymFloat) and self.refused_floats & value.node.expr.free_symbols:
            return 1.0  # in its place: what is made of it is not at fault
        return as_size(value)

    def _item(self, node: torch.fx.Node, value: Any) -> None:
        (argument,) = node.args
        assert isinstance(argument, torch.fx.Node)
        read = self._read(argument)
        given = isinstance(read, Tensor) and read.source is not None
        if argument.op == "placeholder" and given and isinstance(value, torch.SymInt):
            return
        if isinstance(value, torch.SymFloat):
            raise Unsupported("of a float that the model computes", "keep the value in a tensor")
        symbol: Any = as_size(value)
        if isinstance(symbol, sympy.Eq):  # a bool is what is 1 of 0 and 1
            symbol = symbol.lhs
        if is_computed(symbol) and symbol.name not in self.ctx.computed:
            self.ctx.node = node
            flat = self.ctx.reshape(read, (1,))
            self.ctx.bind_size(symbol, self.ctx.cast(flat, "int64"))

    def _loop(self, node: torch.fx.Node) -> list[Tensor]:
        """One of torch's loops, whole: its functions are added to the module at the end."""
        self.ctx.node = node
        name = self.variant.named(node.name)
        modules = [self._submodule(each) for each in node.args if _is_graph(each)]
        groups = [self._tensors_of(each) for each in node.args if isinstance(each, (list, tuple))]
        if node.target is HIGHER.while_loop:
            (condition, body), (carried, fixed) = modules, groups
            made = while_loop(self.ctx, name, condition, body, carried, fixed, self._lower_body)
        else:
            (body,) = modules
            carried, pieces, fixed = groups if node.target is HIGHER.scan else ([], *groups)
            made = scan(self.ctx, name, body, carried, pieces, fixed, self._lower_body)
        self.loops.append(made.module)
        return made.results

    def _submodule(self, node: torch.fx.Node) -> torch.fx.GraphModule:
        module = self.graph_module.get_submodule(str(node.target))
        assert isinstance(module, torch.fx.GraphModule)
        return module

    def _tensors_of(self, nodes: Any) -> list[Any]:
        return [self._read(each) for each in nodes]

    def _lower_body(
        self, ctx: Context, module: torch.fx.GraphModule, operands: Sequence[Any]
    ) -> list[Tensor]:
        return _Body(self, ctx, module).lowered(operands)

    def _require_dtypes(self, node: torch.fx.Node) -> None:
        """Raises:
        Unsupported: the op reads a constant, or makes a tensor, of a dtype that nothing here has.
        """
        constants = [each for each in node.all_input_nodes if each.name in self.constants]
        for each in (*constants, node):
            value = each.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dtype not in DTYPES | PARTS:
                dtype = str(value.dtype).removeprefix("torch.")
                raise Unsupported(f"of {dtype}", "weights in float16, bfloat16 or int8")

    def _emit(self, node: torch.fx.Node) -> Any:
        self._require_dtypes(node)
        if node in self.regions:
            write = self.regions[node]
            base = self._read(write.base)
            if base.state is not None:
                self.ctx.node = node
                levels = [
                    replace(level, size=as_size(level.size), start=self._read(level.start))
                    for level in write.levels
                ]
                return write_part(self.ctx, base, self._read(write.source), levels)
        if node not in self.epilogues:
            return convert_node(self.ctx, node, self._read)
        found = self.epilogues[node]
        self.ctx.node = node
        if isinstance(found, epilogue.NormOfSum):
            x, residual = (self._read(operand) for operand in found.add.args[:2])
            options = bind(found.norm)
            weight, bias = self._read(options["weight"]), self._read(options["bias"])
            axes = len(options["normalized_shape"])
            return layer_norm(self.ctx, x, axes, weight, bias, options["eps"], residual=residual)
        if isinstance(found, epilogue.ConvEpilogue):
            of_conv = {name: self._read(value) for name, value in bind(found.conv).items()}
            of_norm = None
            if found.norm is not None:
                options = bind(found.norm)
                of_norm = {n: self._read(value) for n, value in options.items() if n != "input"}
            return with_epilogue(
                self.ctx,
                of_conv,
                of_norm,
                as_shape(node.meta["val"].shape),
                residual=None if found.residual is None else self._read(found.residual),
                activation=found.activation,
                last=found.conv in self.ctx.channels_last,
            )
        operands = {name: self._read(value) for name, value in bind(found.linear).items()}
        return linear(
            self.ctx,
            operands["input"],
            operands["weight"],
            operands["bias"],
            activation=found.activation,
            residual=None if found.residual is None else self._read(found.residual),
        )

    def _read(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, (list, tuple)):
            return tuple(self._read(item) for item in argument)
        if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return as_size(argument)
        return argument

    # Held against the trace.

    def _held(self, node: torch.fx.Node, result: Any, value: Any) -> Any:
        """The result, each part of it, if it has the dtype and the shape that the trace says.

        Where the two shapes cannot be compared, a check at run time is emitted.
        """
        if isinstance(result, Complex):
            promised = part_of(value)
            return Complex(*(self._held(node, part, promised) for part in (result.re, result.im)))
        shape, dtype = as_shape(value.shape), DTYPES.get(value.dtype)
        if result.dtype != dtype or len(shape) != result.rank:
            raise ExportError(_disagreement(node, result, value))
        answers = [same(a, b) for a, b in zip(shape, result.shape, strict=True)]
        if False in answers:
            raise ExportError(_disagreement(node, result, value))
        if result.constant is not None or shape == result.shape:
            return result
        if result.last is not None:
            sizes = tuple(shape[axis] for axis in layout.to_last(result.rank))
            ty = relax.TensorType(self.ctx.symbols.shape(sizes), dtype)
            return replace(result, shape=shape, last=self.ctx.builder.match_cast(result.last, ty))
        ty = relax.TensorType(self.ctx.symbols.shape(shape), dtype)
        variable = self.ctx.builder.match_cast(self.ctx.variable(result), ty)
        return replace(result, shape=shape, variable=variable)

    def _stand_in(self, node: torch.fx.Node) -> Any:
        """Something in the place of an unsupported op's result, so that the rest is looked at, too."""

        def tensor(value: Any) -> Tensor | Complex | None:
            if isinstance(value, torch.Tensor) and value.dtype in PARTS:
                value = part_of(value)
                return Complex(*(tensor(value) for _ in range(2)))  # type: ignore[arg-type]
            if not isinstance(value, (torch.Tensor, Part)):
                return None
            shape, dtype = as_shape(value.shape), DTYPES.get(value.dtype, "float32")
            ty = relax.TensorType(self.ctx.symbols.shape(shape), dtype)
            return Tensor(shape, dtype, relax.Var(node.name, ty))

        value = node.meta["val"]
        return [tensor(v) for v in value] if isinstance(value, (list, tuple)) else tensor(value)


class _Body(_Importer):
    """The importer of a graph within the graph: the body of a loop."""

    def __init__(self, outer: _Importer, ctx: Context, module: torch.fx.GraphModule) -> None:
        self.graph = module.graph
        self.graph_module = module
        self.constants = {}
        self.variant = outer.variant
        self.ctx = ctx
        self.loops = outer.loops
        self.values = {}
        self.unsupported = []
        self.refused_floats = outer.refused_floats
        self.fast, self.folded = set(), set()
        self.epilogues, self.absorbed, self.regions = {}, set(), {}

    def lowered(self, operands: Sequence[Any]) -> list[Tensor]:
        """The results for some operands.

        Raises:
            Unsupported: an op within that is not supported.
        """
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        self.values.update(zip(placeholders, operands, strict=True))
        for node in self.graph.nodes:
            if node.op == "call_function":
                if str(node.target) in CHECKS and "metadata" not in str(node.target):
                    raise Unsupported("whose body asserts something of its data")
                if node.meta.get("unbacked_bindings") or str(node.target) in ITEMS:
                    raise Unsupported("whose body computes a size or a number of its own")
                self._call(node)
        for node, error in self.unsupported:
            what = f"{node.target} {error.reason}".strip()
            raise Unsupported(f"whose body has {what}", error.tries)
        output = next(node for node in self.graph.nodes if node.op == "output")
        results = output.args[0]
        values = [
            self._read(each)
            for each in (results if isinstance(results, (list, tuple)) else [results])
        ]
        if not all(isinstance(value, Tensor) for value in values):
            raise Unsupported("whose body gives something else than real tensors")
        return values


def _is_graph(argument: Any) -> bool:
    return isinstance(argument, torch.fx.Node) and argument.op == "get_attr"


def _disagreement(node: torch.fx.Node, result: Tensor, value: Any) -> Diagnostic:
    sizes = ", ".join(str(size) for size in result.shape)
    wanted = ", ".join(str(size) for size in value.shape)
    return Diagnostic(
        "TC502",
        f"{node.target}: lowered to {result.dtype}[{sizes}], traced as "
        f"{str(value.dtype).removeprefix('torch.')}[{wanted}]",
        user_location(node.meta.get("stack_trace")),
    )


def _is_op(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or str(node.target) in CHECKS:
        return False
    if node.target in (CHECK_INDEX, REQUIRE):
        return False  # not the model's: what the contract looks at
    value = node.meta.get("val")
    return node.target is not operator.getitem and not isinstance(
        value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    )


def _is_on_data(node: torch.fx.Node) -> bool:
    """Whether a size of the result or of an operand is known only once the data is there."""
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return any(value is not None and free_unbacked_symbols(value) for value in values)
