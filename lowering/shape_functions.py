"""The functions that compute shapes at run time, made the same at every export.

``VMShapeLower`` writes them by walking a set of pointers: the same stores, in an order that hangs on
where the process's memory lies. They are independent of each other, so they are put in order.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, tirx


def order_stores(module: IRModule) -> IRModule:
    """Sort the stores of every shape function by the slot they write to.

    Raises:
        ValueError: a shape function of a form that this does not know.
    """
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and variable.name_hint.startswith("shape_func"):
            module[variable] = function.with_body(_sorted(function.body))
    return module


def _sorted(body: tirx.Stmt) -> tirx.Stmt:
    if not isinstance(body, tirx.SeqStmt):
        return body
    stores = list(body.seq)
    slots: list[int] = []
    for store in stores:
        if not isinstance(store, tirx.BufferStore) or len(store.indices) != 1:
            raise ValueError(f"a shape function holds more than stores: {store}")
        slots.append(int(store.indices[0]))
    read: set[int] = set()
    for store in stores:
        tvm_ffi.structural_walk(
            store.value, (ir.TensorLoad, lambda load: read.add(int(load.indices[0])))
        )
    if len(set(slots)) != len(slots) or read & set(slots):
        raise ValueError("the stores of a shape function depend on each other")
    order = sorted(range(len(stores)), key=slots.__getitem__)
    return tirx.SeqStmt([stores[position] for position in order])
