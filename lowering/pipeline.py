"""From a Relax module to machine code for one target."""

from __future__ import annotations

import tvm
from tvm import IRModule, relax

from .kernels.schedule import mark_noalias, schedule_rest
from .shape_functions import order_stores
from .targets import CpuTarget


def compile_module(module: IRModule, target: CpuTarget) -> relax.VMExecutable:
    """Fuse, schedule, plan memory and generate code. See `kernels.schedule` for the order."""
    llvm = tvm.target.Target(dict(target.llvm))
    passes = relax.transform
    fuse = tvm.transform.Sequential(
        [
            passes.CanonicalizeBindings(),
            passes.DeadCodeElimination(),
            passes.AnnotateTIROpPattern(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
    )
    plan = tvm.transform.Sequential(
        [
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )
    with llvm:
        module = mark_noalias(order_stores(plan(schedule_rest(fuse(module), target))))
        return tvm.compile(
            module,
            target=llvm,
            relax_pipeline=tvm.transform.Sequential([]),
            tir_pipeline="s_tir",
        )
