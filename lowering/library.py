"""All functions of one library, in one module: kernels and weights that are equal are there once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tvm import IRModule, relax

from .answer import Called, Function
from .graph import BuiltGraph, build, finished
from .own_ops import OwnKernel
from .survey import OpUse
from .targets import Target
from .tensor import Constant
from .variants import Variant
from .weights import WeightStore


@dataclass(frozen=True)
class Library:
    """A Relax module, how its functions are called, and the ops of the first one."""

    module: IRModule
    functions: tuple[Called, ...]
    ops: tuple[OpUse, ...]


def build_all(
    programs: Sequence[torch.export.ExportedProgram],
    constants: Sequence[Mapping[str, Constant]],
    functions: Sequence[Function],
    target: Target,
    store: WeightStore,
    own: Sequence[OwnKernel] = (),
) -> Library:
    """Lower every function to Relax for one target.

    Raises:
        ExportError: as `graph.build`.
    """
    builder = relax.BlockBuilder()
    general: dict[int, BuiltGraph] = {}
    graphs: dict[str, BuiltGraph] = {}
    for function in functions:
        number = function.program
        folded = general[number].folded if function.sizes else frozenset()
        variant = Variant(function.name, function.sizes, folded)
        built = build(programs[number], constants[number], target, store, own, variant, builder)
        if not function.sizes:
            general[number] = built
        graphs[function.name] = built
    called = tuple(built.called for built in graphs.values())
    return Library(finished(builder, graphs), called, general[functions[0].program].ops)
