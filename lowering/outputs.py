"""A second function of the library that writes results into memory of the caller's.

The VM asks the system for the memory of every result, and gets it in pages of 4 KiB that are filled
with zeros one by one: for the logits of a language model this takes as long as to compute a layer.
Who calls may have memory at hand that was used before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import Call, Op

_ALLOCATE, _RESHAPE = Op.get("relax.builtin.alloc_tensor"), Op.get("relax.reshape")


def into(function: str) -> str:
    """What the second function is called."""
    return f"{function}_into"


def with_given_results(module: IRModule, weights: Mapping[str, int]) -> IRModule:
    """The module with a second function beside each: before the weights it takes a tensor for each of
    the `given_results`, in their order, and it returns what the first one returns.

    Args:
        module: after CallTIRRewrite. Where no result can be given, it stays as it is.
        weights: of each function, by name, how many of its last parameters are weights.
    """
    made = {}
    for name, count in weights.items():
        function = module[name]
        places = _places(function)
        if places:
            at = len(function.params) - count
            made[into(name)] = _with_parameters(function, list(places.values()), at, into(name))
    if made:
        module = IRModule(module.functions, attrs=module.attrs)
        for name, function in made.items():
            module[name] = function
    return module


def given_results(module: IRModule, function: str) -> tuple[int, ...]:
    """The numbers of the results of a function that can lie in memory of the caller's."""
    return tuple(_places(module[function]))


@dataclass(frozen=True)
class _Place:
    """A result, and the variable for whose memory it stands, maybe in another shape."""

    result: relax.Var
    allocated: relax.Var


def _places(main: relax.Function) -> dict[int, _Place]:
    """The results, by number, for which the function allocates memory of a size that its arguments
    tell."""
    known: set[tirx.Var] = set()
    for param in main.params:
        known.update(relax.analysis.definable_tir_vars_in_type(param.ty))
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if any(_calls(binding.var.ty) for binding in bindings):
        return {}  # relax cannot copy types with such sizes
    values = {
        binding.var: binding.value for binding in bindings if isinstance(binding, relax.VarBinding)
    }
    body = main.body.body
    results = values.get(body, body)
    fields = results.fields if isinstance(results, relax.Tuple) else [body]
    found: dict[int, _Place] = {}
    for number, result in enumerate(fields):
        variable = result
        while (value := values.get(variable)) is not None:
            if isinstance(value, relax.Var):
                variable = value
            elif isinstance(value, relax.Call) and value.op == _RESHAPE:
                variable = value.args[0]
            else:
                break
        if not isinstance(value, relax.Call) or value.op != _ALLOCATE:
            continue
        taken = any(variable.same_as(each.allocated) for each in found.values())
        if not taken and known.issuperset(relax.analysis.tir_vars_in_type(result.ty)):
            found[number] = _Place(result, variable)
    return found


def _calls(ty: relax.Type) -> bool:
    """Whether a size in a type is computed by a function (``trunc``), not by arithmetic alone."""
    if isinstance(ty, relax.TupleType):
        return any(_calls(field) for field in ty.fields)
    shape = getattr(ty, "shape", None)
    values = getattr(shape, "values", None) or getattr(ty, "values", None) or []
    return any(_is_called(value) for value in values)


def _is_called(size: tirx.Expr) -> bool:
    found: list[Call] = []
    tvm_ffi.structural_walk(size, (Call, found.append))
    return bool(found)


def _with_parameters(
    main: relax.Function, places: list[_Place], at: int, name: str
) -> relax.Function:
    """The function with parameters, from number ``at`` on, in place of these allocations."""
    given = [relax.Var(f"result{number}", each.result.ty) for number, each in enumerate(places)]
    memory = {
        each.allocated: relax.op.reshape(var, each.allocated.ty.shape)
        for var, each in zip(given, places, strict=True)
    }
    builder = relax.BlockBuilder()

    def binding(old: relax.Binding) -> relax.Binding:
        if old.var in memory:
            return relax.VarBinding(old.var, builder.normalize(memory[old.var]))
        value = old.value
        if isinstance(value, relax.Call) and value.op == _ALLOCATE:
            # A call of its own: the memory planner knows allocations by their node.
            return relax.VarBinding(
                old.var, builder.normalize(relax.Call(value.op, value.args, value.attrs))
            )
        return old

    blocks = [
        relax.BindingBlock([binding(each) for each in block.bindings]) for block in main.body.blocks
    ]
    function = relax.Function(
        [*main.params[:at], *given, *main.params[at:]],
        relax.SeqExpr(blocks, main.body.body),
        main.ret_ty,
        is_pure=main.is_pure,
        attrs=main.attrs,
    )
    return relax.utils.copy_with_new_vars(function).with_attr("global_symbol", name)
