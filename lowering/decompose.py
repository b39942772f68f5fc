"""From a traced program to the graph that is lowered: functional, and of ops that have converters.

This happens on the fresh trace, in the process that traced, so that whatever a decomposition assumes
about sizes becomes a guard in the same shape environment and is read from there with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.fx.experimental._config as fx_config
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.export.graph_signature import OutputKind
from torch.fx.experimental.symbolic_shapes import rebind_unbacked, statically_known_true

from ..artifacts.errors import Diagnostic, ExportError
from .branches import inline_branches
from .checks import CHECK_INDEX, UNNUMBERED
from .composites import COMPOSITES
from .draws import DRAWN, WORDS
from .generator import draw_decompositions, place_generator
from .locations import user_location
from .ops import KEPT
from .quantized import quantized_decompositions
from .rounding import write_roundings
from .tracing import views_kept

aten = torch.ops.aten


def decompose(
    program: torch.export.ExportedProgram, paths: Mapping[str, str]
) -> torch.export.ExportedProgram:
    """Make the graph functional, and take apart every op that has no converter of its own.

    Args:
        program: a fresh trace; its own graph is changed.
        paths: the user's names for the graph's inputs.

    Raises:
        ExportError: the model changes a parameter (TC103) or an input (TC104), or draws random
            numbers in a way that a bundle cannot (TC105); all such places are listed.
    """
    inline_branches(program)
    _open_regions(program.graph_module)
    for node in program.graph.nodes:
        # A view that eager mode can take may not be one of what a decomposition gives instead.
        if node.op == "call_function" and node.target is aten.view.default:
            node.target = aten.reshape.default
    # Not the guards that torch would evaluate again on the graph's own sizes: to evaluate
    # `s == min(24, s)` leaves `s < 24` behind.
    program._guards_code = []
    table = torch.export.default_decompositions()
    for op in list(table):
        if str(op) in KEPT:
            table.pop(op)
    table.update(_CHECKED)
    table.update(COMPOSITES)
    table.update(quantized_decompositions())
    table.update(draw_decompositions())
    # The settings that the trace was made with: without them new guards would appear here.
    with (
        torch.no_grad(),
        fx_config.patch(backed_size_oblivious=True, use_duck_shape=False),
        torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
        views_kept(),
    ):
        program = program.run_decompositions(table)
    place_generator(program)
    write_roundings(program.graph)
    _drop_unused_draws(program.graph)
    found = [*_mutations(program, paths), *_randomness(program)]
    if found:
        raise ExportError(found)
    return program


def _open_regions(module: torch.fx.GraphModule, outside: frozenset[Any] = frozenset()) -> None:
    """Let the regions of a graph, those under autocast, be taken apart node by node: run as Python, as
    torch does, they lose the lines of their nodes, and what is asserted of the numbers they compute.

    Args:
        outside: the symbols of numbers that come out of the region, where they are bound again.
    """
    bound = [symbol for node in module.graph.nodes for symbol in _bound_by(node)]
    for node in module.graph.nodes:
        if node.target not in _REGIONS:
            continue
        name = next(each.target for each in node.args if isinstance(each, torch.fx.Node))
        region = getattr(module, str(name))
        _open_regions(region, outside.union(bound))
        region.forward = _Region(region, outside.union(bound)).run


def _bound_by(node: torch.fx.Node) -> Mapping[Any, Any]:
    return node.meta.get("unbacked_bindings") or {}


class _Region(torch.fx.Interpreter):
    """Runs a region so that the numbers that it computes keep the symbols that assertions name them by;
    those that come out of it are given theirs by the graph around it."""

    def __init__(self, region: torch.fx.GraphModule, outside: frozenset[Any]) -> None:
        super().__init__(region)
        self._outside = outside

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        mode = detect_fake_mode()
        if mode is not None and not self._outside.intersection(_bound_by(n)):
            rebind_unbacked(mode.shape_env, n, result)
        return result


_REGIONS = (
    torch.ops.higher_order.wrap_with_autocast,
    torch.ops.higher_order.wrap_with_set_grad_enabled,
)


def _drop_unused_draws(graph: torch.fx.Graph) -> None:
    """Random numbers that nothing comes of, such as those that decide in training which layers to
    skip; torch keeps them for the sake of its generator."""
    for node in reversed(graph.nodes):
        if node.users or node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if not node.target._schema.is_mutable and (_draws(node) or not node.is_impure()):
            graph.erase_node(node)


def _draws(node: torch.fx.Node) -> bool:
    op = node.target
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def _one_hot(indices: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    checked = CHECK_INDEX(indices, num_classes, False, UNNUMBERED)
    classes = torch.arange(num_classes, device=indices.device, dtype=indices.dtype)
    return torch.eq(checked.unsqueeze(-1), classes).to(torch.int64)


def _checked_rows(op: torch._ops.OpOverload) -> Callable[..., torch.Tensor]:
    """Torch's own decomposition of an op that writes to rows, in which negative rows would count
    from the end: the op itself refuses them."""
    inner = torch.export.default_decompositions()[op]

    def decomposition(
        x: torch.Tensor, dim: int, index: torch.Tensor, *rest: Any, **more: Any
    ) -> torch.Tensor:
        size = x.shape[dim] if x.dim() else 1
        index = CHECK_INDEX(index, size, False, UNNUMBERED)
        return cast("torch.Tensor", inner(x, dim, index, *rest, **more))

    return decomposition


def _select_scatter(x: torch.Tensor, src: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """As a slice of one element: torch's own decomposition looks at every element of ``x``."""
    size = x.shape[dim]
    if not statically_known_true(index >= 0):
        if not isinstance(index, int) or not isinstance(size, int):
            inner = torch.export.default_decompositions()[aten.select_scatter.default]
            return cast("torch.Tensor", inner(x, src, dim, index))
        index += size
    return aten.slice_scatter.default(x, src.unsqueeze(dim), dim, index, index + 1)


# What torch takes apart in a way that loses what the op itself checks, or that it costs little.
_CHECKED: dict[Any, Callable[..., torch.Tensor]] = {
    aten.select_scatter.default: _select_scatter,
    aten.one_hot.default: _one_hot,
    aten.index_add.default: _checked_rows(aten.index_add.default),
    aten.index_copy.default: _checked_rows(aten.index_copy.default),
}


def _mutations(program: torch.export.ExportedProgram, paths: Mapping[str, str]) -> list[Diagnostic]:
    found = []
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            continue
        node = nodes.get(getattr(spec.arg, "name", ""))
        location = user_location(node.meta.get("stack_trace")) if node else None
        name = str(spec.target)
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            path = paths.get(name, name)
            found.append(
                Diagnostic(
                    "TC104",
                    f"the model writes to its input {path}",
                    location,
                    tries=(f"write to a copy: {path}.clone()",),
                )
            )
        elif spec.kind is OutputKind.PARAMETER_MUTATION:
            found.append(
                Diagnostic(
                    "TC103",
                    f"the model writes to {name}, which is a parameter, not a buffer",
                    location,
                    tries=(f"self.register_buffer(…) for {name}: a written buffer is state",),
                )
            )
        else:
            found.append(
                Diagnostic("TC103", f"the program has an output of kind {spec.kind.name}", location)
            )
    return found


def _drops_nothing(node: torch.fx.Node) -> bool:
    """Attention and recurrent layers carry the tag for the sake of their dropout alone."""
    if node.target is aten.scaled_dot_product_attention.default:
        dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        return dropout == 0.0
    if str(node.target) in _RECURRENT:
        dropout, train = node.args[5:7]
        return dropout == 0.0 or not train
    return False


_RECURRENT = ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")


def _randomness(program: torch.export.ExportedProgram) -> list[Diagnostic]:
    found = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not _draws(node) or node.target is WORDS:
            continue
        if _drops_nothing(node):
            continue
        found.append(
            Diagnostic(
                "TC105",
                f"{node.target} draws random numbers, of a kind that a bundle does not draw",
                user_location(node.meta.get("stack_trace")),
                tries=(
                    DRAWN,
                    "take the random tensor as an input: def forward(self, x, noise)",
                ),
            )
        )
    return found
