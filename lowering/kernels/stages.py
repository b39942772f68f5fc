"""Reading what Relax lowered as stages: loop nests whose points do not depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import tvm_ffi
from tvm import ir, s_tir, tirx

from .prim_func import Expr

_SPATIAL, _REDUCE = 0, 2  # IterVar.DataPar, IterVar.CommReduce
_CHEAP_CALLS = {"prim.if_then_else", "prim.likely", "tirx.fabs"}


@dataclass(frozen=True)
class Stage:
    """One loop nest: ``init`` once for each point of ``spatial``, ``body`` for each of ``reduce``.

    ``stores`` has the buffers it writes; a point of ``spatial`` writes elements that no other does.
    """

    spatial: tuple[tirx.IterVar, ...]
    reduce: tuple[tirx.IterVar, ...]
    init: tirx.Stmt | None
    body: tirx.Stmt
    stores: tuple[tirx.BufferStore, ...]

    @property
    def is_injective(self) -> bool:
        return not self.reduce and self.init is None and isinstance(self.body, tirx.BufferStore)


def read_stage(nest: tirx.Stmt) -> Stage | None:
    """The stage that a loop nest around one block is, or None for anything else."""
    loops = []
    while isinstance(nest, tirx.For):
        plain = nest.kind == tirx.ForKind.SERIAL and is_constant(nest.min, 0)
        if not plain or nest.annotations or nest.step is not None:
            return None
        loops.append(nest)
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize) or not is_constant(nest.predicate, 1):
        return None
    block = nest.block
    if block.match_buffers or block.alloc_buffers or len(loops) != len(block.iter_vars):
        return None
    for loop, variable, value in zip(loops, block.iter_vars, nest.iter_values, strict=True):
        if not value.same_as(loop.loop_var) or not is_constant(variable.dom.min, 0):
            return None
    spatial = tuple(v for v in block.iter_vars if v.iter_type == _SPATIAL)
    reduce = tuple(v for v in block.iter_vars if v.iter_type == _REDUCE)
    if len(spatial) + len(reduce) != len(block.iter_vars):
        return None
    stores = _stores(block.body)
    if stores is None or (block.init is not None and _stores(block.init) is None):
        return None
    stage = Stage(spatial, reduce, block.init, block.body, stores)
    return stage if _points_are_independent(stage) else None


def _stores(body: tirx.Stmt) -> tuple[tirx.BufferStore, ...] | None:
    """The stores of a body that is nothing but bindings and stores."""
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(isinstance(s, (tirx.Bind, tirx.BufferStore)) for s in statements):
        return None
    return tuple(s for s in statements if isinstance(s, tirx.BufferStore))


def _points_are_independent(stage: Stage) -> bool:
    """Whether each spatial point writes its own elements, and reads none that another writes."""
    own = [v.var for v in stage.spatial if not is_constant(v.dom.extent, 1)]
    for store in stage.stores:
        used = [i for i in store.indices if isinstance(i, tirx.Var)]
        if not all(isinstance(i, (tirx.Var, tirx.IntImm)) for i in store.indices):
            return False
        if any(sum(v.same_as(i) for i in used) != 1 for v in own):
            return False
    written = [store.buffer for store in stage.stores]
    for load in loads(stage.body):
        for store in stage.stores:
            if load.source.same_as(store.buffer) and (
                stage.is_injective
                or len(load.indices) != len(store.indices)
                or not all(map(same, load.indices, store.indices))
            ):
                return False
    return len({hash(buffer) for buffer in written}) == len(written)


def loads(node: tirx.Stmt | Expr) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(node, (ir.TensorLoad, lambda load: found.append(load)))
    return found


def _mentioned(node: tirx.Stmt | Expr) -> set[tirx.Var]:
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(node, (tirx.Var, lambda variable: found.add(variable)))
    return found


def is_constant(value: Expr, constant: int) -> bool:
    return isinstance(value, (int, tirx.IntImm)) and int(value) == constant


def same(a: Expr, b: Expr) -> bool:
    return tvm_ffi.structural_equal(a, b)


# Which stages go into their readers.


def choose_inlined(
    nests: Sequence[tirx.Stmt], stages: Sequence[Stage | None], temporaries: list[tirx.Buffer]
) -> dict[tirx.Buffer, Stage]:
    """The intermediates that are computed where they are read."""
    mentioned = [_mentioned(nest) for nest in nests]
    writers: dict[tirx.Buffer, int] = {}
    for stage, mentions in zip(stages, mentioned, strict=True):
        written = mentions if stage is None else {store.buffer for store in stage.stores}
        for buffer in written:
            writers[buffer] = writers.get(buffer, 0) + 1
    inlined: dict[tirx.Buffer, Stage] = {}
    costs: dict[tirx.Buffer, float] = {}
    for stage in stages:
        if stage is None or not stage.is_injective:
            continue
        (store,) = stage.stores
        if store.buffer not in temporaries or writers[store.buffer] != 1:
            continue
        if any(isinstance(i, tirx.IntImm) and int(i) for i in store.indices):
            continue
        sources = [load.source for load in loads(store.value)]
        if any(writers.get(source, 0) > 1 for source in sources):
            continue
        cost = _cost(store.value) + sum(costs.get(source, 0) for source in sources)
        readers = [
            other
            for other, mentions in zip(stages, mentioned, strict=True)
            if other is not stage and store.buffer in mentions
        ]
        if None in readers:
            continue
        read_once = len(readers) == 1 and all(
            reader is not None
            and _reads_each_once(reader, store.buffer)
            and not _read_in_branch(reader, store.buffer)
            for reader in readers
        )
        if read_once or cost <= _CHEAP:
            inlined[store.buffer] = stage
            costs[store.buffer] = cost
    return inlined


_CHEAP = 12


def _cost(value: Expr) -> float:
    """Roughly the instructions of an expression; infinite with a function in it."""
    total = 0.0

    def count(node: Expr) -> None:
        nonlocal total
        if isinstance(node, ir.Call):
            total += 1 if node.op.name in _CHEAP_CALLS else inf
        elif isinstance(node, tirx.Div):
            total += 8
        elif not isinstance(node, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
            total += 1

    tvm_ffi.structural_walk(value, (ir.Expr, count))
    return total


def _reads_each_once(reader: Stage, buffer: tirx.Buffer) -> bool:
    """Whether no element of the buffer is read at two points of the reader's loops."""
    variables = [
        v.var for v in (*reader.spatial, *reader.reduce) if not is_constant(v.dom.extent, 1)
    ]
    return all(
        all(isinstance(i, (tirx.Var, tirx.IntImm)) for i in load.indices)
        and all(any(v.same_as(i) for i in load.indices) for v in variables)
        for load in loads(reader.body)
        if load.source.same_as(buffer)
    )


def _read_in_branch(reader: Stage, buffer: tirx.Buffer) -> bool:
    """Whether a load stands where only a part of the points computes it, as in padding."""
    branches: list[Expr] = []

    def visit(node: Expr) -> None:
        if isinstance(node, tirx.Select):
            branches.extend((node.true_value, node.false_value))
        elif isinstance(node.op, ir.Op) and node.op.name == "prim.if_then_else":
            branches.extend(node.args[1:])

    tvm_ffi.structural_walk(reader.body, ((tirx.Select, ir.Call), visit))
    return any(load.source.same_as(buffer) for branch in branches for load in loads(branch))
