"""From fused functions to kernels with threads: TVM's dlight rules, in the order that its own
pipeline for CUDA has, and what must be done before and after them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx import compilation_pipeline

from ...artifacts.errors import Diagnostic, ExportError
from ...artifacts.logs import log
from ..kernels.schedule import SCHEDULED
from .numbers import begun_at_infinity, keeping_nan, with_exact_functions

PIPELINE = "tcexport_cuda"  # the name by which `tvm.compile` takes `_pipeline`

_RULES = (
    dlight.gpu.Matmul,
    dlight.gpu.GEMV,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
    dlight.gpu.Fallback,
)


def schedule(module: IRModule) -> IRModule:
    """Give every PrimFunc its threads; within a target for CUDA.

    Raises:
        ExportError: TC502, a function that no rule has a schedule for.
    """
    target = tvm.target.Target.current()
    result = module.clone()
    for name, function in module.functions_items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        if SCHEDULED in (function.attrs or {}):  # it has its threads: see `launch`
            result.update_func(name, function.with_attr("tirx.is_scheduled", True))
            continue
        exact = with_exact_functions(function)
        result.update_func(name, begun_at_infinity(_scheduled(name.name_hint, exact, target)))
    return result


def _scheduled(name: str, function: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """By the first rule whose schedule can be lowered: a rule takes reductions that TVM then cannot
    split among threads, because it does not know how they combine (an argmax, a product of bools)."""
    listener = log("lowering")
    reasons = []
    for rule in _RULES:
        try:
            made = rule().apply(function, target, False)
            if made is None:
                continue
            one = made[0] if isinstance(made, list) else made
            alone = _CROSS_THREAD(tvm.IRModule({"main": one.mod["main"]}))
        except Exception as error:  # whatever TVM raises; the next rule may do better
            reasons.append(f"{rule.__name__}: {str(error).strip().splitlines()[:1]}")
            continue
        if listener is not None:
            listener.info("cuda: %s is scheduled as %s", name, rule.__name__)
        return alone["main"].with_attr("tirx.is_scheduled", True)
    raise ExportError(Diagnostic("TC502", f"{name}: no schedule for a GPU", notes=tuple(reasons)))


_CROSS_THREAD = tvm.transform.Sequential(
    [s_tir.transform.CanonicalizeLoop(), s_tir.transform.LowerCrossThreadReduction()]
)


@tvm.transform.module_pass(opt_level=0)
def _keep_nan(module: IRModule, context: tvm.transform.PassContext) -> IRModule:
    return keeping_nan(module)


def _pipeline() -> tuple[Any, Any, Any]:
    """TVM's passes for scheduled functions, those for the host and those for the device at the end;
    among the last, after all that simplifies, one of ours."""
    lower, finish_host, _ = default_s_tir_pipeline()

    def finish_device() -> Any:
        return tvm.transform.Sequential(
            [
                tirx.transform.LowerWarpMemory(),
                tirx.transform.StmtSimplify(),
                _keep_nan,
                tirx.transform.LowerIntrin(),
            ]
        )

    return lower, finish_host, finish_device


compilation_pipeline.PIPELINE_MAP[PIPELINE] = _pipeline
