"""What a call asks the system for: sums of sizes, read off the memory plan of the compiled module.

After TVM has planned memory, every allocation and every end of use stands in the function, with sizes
over torch's symbols. Walking through it gives, after each allocation, what is there at once. The most
of these sums is what a call needs at most, beside its arguments, the weights, and what kernels take for
themselves (tiles, at most some hundred kilobytes a thread).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.sym import Analyzer

from ..artifacts.expr import MAX_NODES, Expr, walk

_MOST = 16  # sums that are kept

_ALLOCATE = ir.Op.get("relax.memory.alloc_storage")
_TENSOR = ir.Op.get("relax.memory.alloc_tensor")
_KILLS = (ir.Op.get("relax.memory.kill_storage"), ir.Op.get("relax.memory.kill_tensor"))


def peaks(main: relax.Function) -> tuple[Expr, ...] | None:
    """Sums of bytes over the symbols in the shapes of the parameters; the largest one counts.

    Args:
        main: after KillAfterLastUse, before the VM's own lowering.

    Returns:
        None where a size depends on data, or the sums are too many to keep.
    """
    known: set[str] = set()
    for param in main.params:
        known.update(var.name for var in relax.analysis.definable_tir_vars_in_type(param.ty))
        if isinstance(param.ty, relax.ShapeType) and param.ty.values is not None:
            known.update(var.name for var in param.ty.values if isinstance(var, tirx.Var))
    sizes: dict[relax.Var, Expr] = {}
    held: dict[relax.Var, set[relax.Var]] = {}  # by each variable: the storages that it keeps alive
    alive: set[relax.Var] = set()  # variables that were not killed
    points: list[frozenset[relax.Var]] = []
    for block in main.body.blocks:
        for binding in block.bindings:
            value, var = binding.value, binding.var
            if isinstance(value, relax.Call) and value.op in _KILLS:
                alive.discard(value.args[0])
                continue
            if isinstance(value, relax.Call) and value.op == _ALLOCATE:
                size = _expression(value.args[0].values[0], known)
                if size is None:
                    return None
                sizes[var] = size
                held[var] = {var}
                alive.add(var)
                points.append(frozenset(each for name in alive for each in held[name]))
                continue
            used = _storages(value, held)
            if used:
                held[var] = used
                alive.add(var)
    tops = [point for point in dict.fromkeys(points) if not any(point < other for other in points)]
    sums = list(dict.fromkeys(_sum([sizes[var] for var in sizes if var in top]) for top in tops))
    if len(sums) > _MOST or any(sum(1 for _ in walk(each)) > MAX_NODES for each in sums):
        return None
    return tuple(sums)


def joined(targets: Sequence[tuple[Expr, ...] | None]) -> tuple[Expr, ...] | None:
    """The `peaks` of several targets together."""
    found: dict[Expr, None] = {}
    for each in targets:
        if each is None:
            return None
        found.update(dict.fromkeys(each))
    return tuple(found) if len(found) <= _MOST else None


def _storages(value: relax.Expr, held: dict[relax.Var, set[relax.Var]]) -> set[relax.Var]:
    """The storages that what is bound here may lie in. A kernel's call gives nothing back."""
    if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar):
        return set()
    found: set[relax.Var] = set()
    relax.analysis.post_order_visit(
        value,
        lambda each: found.update(held.get(each, ())) if isinstance(each, relax.Var) else None,
    )
    return found


def _sum(sizes: list[Expr]) -> Expr:
    """The sum, equal sizes taken together and numbers added up."""
    constant = sum(size for size in sizes if isinstance(size, int))
    rest = [size for size in sizes if not isinstance(size, int)]
    terms: list[Expr] = []
    for size in dict.fromkeys(rest):
        count = rest.count(size)
        factor, product = _factored(size)
        terms.append(product if count * factor == 1 else ("*", count * factor, product))
    if constant or not terms:
        terms.append(constant)
    total = terms[0]
    for term in terms[1:]:
        total = ("+", total, term)
    return total


def _factored(size: Expr) -> tuple[int, Expr]:
    if isinstance(size, tuple) and size[0] == "*" and isinstance(size[1], int) and len(size) == 3:
        return size[1], size[2]
    return 1, size


_BINARY: dict[type, str] = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "//", tirx.FloorMod: "%",
    tirx.Min: "min", tirx.Max: "max",
}  # fmt: skip


def _expression(size: Any, known: set[str]) -> Expr | None:
    """A size as an expression over the names of variables; None where it is none, or depends on
    more than the ``known`` ones."""
    size = Analyzer().simplify(size)
    if isinstance(size, tirx.IntImm):
        return int(size)
    if isinstance(size, tirx.Var):
        return size.name if size.name in known else None
    if isinstance(size, tirx.Cast):
        return _expression(size.value, known)
    op = _BINARY.get(type(size))
    if op is None:
        return None
    left, right = _expression(size.a, known), _expression(size.b, known)
    if left is None or right is None:
        return None
    if op == "*" and isinstance(right, int):
        left, right = right, left
    return (op, left, right)
