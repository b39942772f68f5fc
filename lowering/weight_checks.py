"""The checks of weights that every call would make, left out.

``VMShapeLower`` has each function compare dtype, rank and sizes of all that it is given. For inputs
that reads the sizes; weights are the same at every call, and each kernel compares what it is given
itself. In a small model these checks are a third of what the VM does.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, relax

from .outputs import into

_CHECKS = {"vm.builtin.check_tensor_info", "vm.builtin.match_shape"}
_EQUAL_TO_NUMBER = 0  # MatchShapeCode of TVM's VM; others store a size, or compare it with one


def without_weight_checks(module: IRModule, weights: Mapping[str, int]) -> IRModule:
    """The module after VMShapeLower without what its functions only compare of their weights.

    Args:
        weights: of each function, by name, how many of its last parameters are weights. What
            `outputs.with_given_results` made of it has as many.
    """
    counts = {**weights, **{into(name): count for name, count in weights.items()}}
    for variable, function in module.functions_items():
        count = counts.get(variable.name_hint, 0)
        if count and isinstance(function, relax.Function):
            module[variable] = _without(function, list(function.params)[-count:])
    return module


def _without(function: relax.Function, weights: list[relax.Var]) -> relax.Function:
    blocks = [
        relax.BindingBlock([each for each in block.bindings if not _compares(each.value, weights)])
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(
        function.params, body, function.ret_ty, is_pure=function.is_pure, attrs=function.attrs
    )


def _compares(value: relax.Expr, weights: list[relax.Var]) -> bool:
    if not isinstance(value, relax.Call) or not isinstance(value.op, relax.ExternFunc):
        return False
    name = str(value.op.global_symbol)
    if name not in _CHECKS or not any(value.args[0].same_as(weight) for weight in weights):
        return False
    codes = value.args[3:-1:2] if name == "vm.builtin.match_shape" else []
    return all(int(code.value) == _EQUAL_TO_NUMBER for code in codes)
