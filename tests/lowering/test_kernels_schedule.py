import functools

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from tvm import relax, te, tirx, topi
from tvm.relax import op as R

from tcexport.lowering.kernels import schedule
from tcexport.lowering.kernels.prim_func import PASS_CONFIG
from tcexport.lowering.kernels.schedule import mark_noalias, schedule_rest, unscheduled
from tcexport.lowering.targets import CPU_TARGETS

from .kernel_harness import LEVELS

WIDTH = 40
CASES = {
    "add": (R.add, torch.add),
    "gelu of a sum": (lambda x, y: R.nn.gelu(R.add(x, y)), lambda x, y: F.gelu(x + y)),
    "exp log sigmoid tanh": (
        lambda x, y: R.log(R.sigmoid(R.tanh(R.exp(x)))),
        lambda x, y: torch.log(torch.sigmoid(torch.tanh(torch.exp(x)))),
    ),
    "square": (
        lambda x, y: R.power(x, relax.const(2.0, "float32")),
        lambda x, y: x**2,
    ),
    "sum of the last axis": (lambda x, y: R.sum(x, axis=-1), lambda x, y: x.sum(-1)),
    "sum of a middle axis": (lambda x, y: R.sum(x, axis=1), lambda x, y: x.sum(1)),
    "sum of the outer axes": (lambda x, y: R.sum(x, axis=[0, 1]), lambda x, y: x.sum((0, 1))),
    "sum of everything": (lambda x, y: R.sum(R.exp(x)), lambda x, y: x.exp().sum()),
    "sum of logarithms": (
        lambda x, y: R.sum(R.log(R.abs(x)), axis=-1),
        lambda x, y: x.abs().log().sum(-1),
    ),
    "sum of sines": (lambda x, y: R.sum(R.sin(x), axis=-1), lambda x, y: x.sin().sum(-1)),
    "sum of roots of what is positive": (
        lambda x, y: R.sum(
            R.where(R.greater(x, y), R.sqrt(R.abs(x)), relax.const(0.0, "float32")), axis=-1
        ),
        lambda x, y: torch.where(x > y, x.abs().sqrt(), 0.0).sum(-1),
    ),
    "mean, and what it is taken from": (
        lambda x, y: R.subtract(x, R.mean(x, axis=-1, keepdims=True)),
        lambda x, y: x - x.mean(-1, keepdim=True),
    ),
    "variance": (
        lambda x, y: R.variance(x, axis=[-1]),
        lambda x, y: x.var(-1, unbiased=False),
    ),
    "max and min": (
        lambda x, y: R.add(R.max(x, axis=1), R.min(y, axis=1)),
        lambda x, y: x.amax(1) + y.amin(1),
    ),
    "max of the last axis": (lambda x, y: R.max(x, axis=-1), lambda x, y: x.amax(-1)),
    "argmax": (lambda x, y: R.argmax(x, axis=-1), lambda x, y: x.argmax(-1)),
    "argmax of a middle axis": (lambda x, y: R.argmax(x, axis=1), lambda x, y: x.argmax(1)),
    "transpose": (
        lambda x, y: R.permute_dims(x, [2, 0, 1]),
        lambda x, y: x.permute(2, 0, 1),
    ),
    "concat": (lambda x, y: R.concat([x, y, x], axis=-1), lambda x, y: torch.cat([x, y, x], -1)),
    "concat of a dynamic axis": (
        lambda x, y: R.concat([x, y], axis=1),
        lambda x, y: torch.cat([x, y], 1),
    ),
    "pad": (
        lambda x, y: R.nn.pad(R.exp(x), [0, 0, 1, 2, 3, 0]),
        lambda x, y: F.pad(x.exp(), (3, 0, 1, 2)),
    ),
    "where": (
        lambda x, y: R.where(R.greater(x, y), R.exp(x), relax.const(0.0, "float32")),
        lambda x, y: torch.where(x > y, x.exp(), 0.0),
    ),
    "to int64": (
        lambda x, y: R.astype(R.multiply(x, relax.const(10.0, "float32")), "int64"),
        lambda x, y: (x * 10).to(torch.int64),
    ),
    "integer sum": (
        lambda x, y: R.sum(R.astype(R.greater(x, y), "int64"), axis=-1),
        lambda x, y: (x > y).sum(-1),
    ),
    "take": (
        lambda x, y: R.take(x, relax.const(np.array([3, 0, 39]), "int64"), axis=2, mode="clip"),
        lambda x, y: x[:, :, [3, 0, 39]],
    ),
    "cumsum, which is left alone": (
        lambda x, y: R.cumsum(x, axis=1),
        lambda x, y: x.cumsum(1),
    ),
    "chain whose values are each used twice": (
        lambda x, y: functools.reduce(
            lambda v, _: R.multiply(R.sigmoid(v), R.add(v, y)), range(12), x
        ),
        lambda x, y: functools.reduce(lambda v, _: torch.sigmoid(v) * (v + y), range(12), x),
    ),
}


def _relax_module(names=tuple(CASES)):
    """A function of x and y ``[b, s, 40]`` with one output for each case."""
    builder = relax.BlockBuilder()
    b, s = tirx.Var("b", "int64"), tirx.Var("s", "int64")
    x, y = (relax.Var(name, relax.TensorType((b, s, WIDTH), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            outputs = [builder.emit(CASES[name][0](x, y)) for name in names]
            result = builder.emit_output(relax.Tuple(outputs))
        builder.emit_func_output(result)
    return builder.get()


def _lower(module, target):
    """The passes in the order that schedule.py asks for."""
    transform, sequential = relax.transform, tvm.transform.Sequential
    with tvm.target.Target(dict(target.llvm)):
        module = sequential(
            [
                relax.backend.DispatchSortScan(),
                transform.LegalizeOps(),
                transform.AnnotateTIROpPattern(),
                transform.FoldConstant(),
                transform.FuseOps(),
                transform.FuseTIR(),
                transform.DeadCodeElimination(),
            ]
        )(module)
        scheduled = schedule_rest(module)
        module = sequential(
            [
                transform.RewriteDataflowReshape(),
                transform.ToNonDataflow(),
                transform.RemovePurityChecking(),
                transform.CallTIRRewrite(),
                transform.StaticPlanBlockMemory(),
                transform.LowerAllocTensor(),
                transform.KillAfterLastUse(),
                transform.LowerRuntimeBuiltin(),
                transform.ComputePrimValue(),
                transform.VMShapeLower(),
                transform.AttachGlobalSymbol(),
            ]
        )(scheduled)
        return scheduled, mark_noalias(module)


@functools.cache
def _compiled(level, names=tuple(CASES)):
    target = CPU_TARGETS[level]
    _, module = _lower(_relax_module(names), target)
    with tvm.transform.PassContext(**PASS_CONFIG):
        executable = tvm.compile(
            module,
            target=tvm.target.Target(dict(target.llvm)),
            relax_pipeline=tvm.transform.Sequential([]),
            tir_pipeline="s_tir",
        )
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


def _check(level, x, y):
    outputs = _compiled(level)(tvm.runtime.tensor(x.numpy()), tvm.runtime.tensor(y.numpy()))
    for (name, (_, expected)), output in zip(CASES.items(), outputs, strict=True):
        wanted = expected(x, y).numpy()
        assert output.numpy().dtype == wanted.dtype, name
        # Float sums differ by rounding, in proportion to how much is added up.
        tolerance = 2e-7 * len(x.flatten()) ** 0.5 * 10 if "sum" in name else 2e-5
        np.testing.assert_allclose(
            output.numpy(), wanted, rtol=2e-5, atol=max(tolerance, 2e-5), err_msg=name
        )


@settings(max_examples=12, deadline=None)
@given(level=st.sampled_from(LEVELS), b=st.integers(1, 5), s=st.integers(1, 200))
def test_every_case_agrees_with_torch_at_drawn_sizes(level, b, s):
    torch.manual_seed(b * 1000 + s)
    _check(level, torch.randn(b, s, WIDTH), torch.randn(b, s, WIDTH))


@pytest.mark.parametrize("level", LEVELS)
def test_large_and_small_sizes_agree_with_torch(level):
    torch.manual_seed(0)
    for b, s in ((1, 1), (3, 1500)):
        _check(level, torch.randn(b, s, WIDTH), torch.randn(b, s, WIDTH))


@pytest.mark.parametrize("level", LEVELS)
def test_an_empty_axis_is_no_crash(level):
    # TOPI's own cumsum writes the first element without asking whether there is one.
    names = tuple(name for name in CASES if "cumsum" not in name)
    main = _compiled(level, names)
    empty = tvm.runtime.tensor(np.zeros((0, 7, WIDTH), np.float32))
    outputs = dict(zip(names, main(empty, empty), strict=True))
    assert outputs["gelu of a sum"].numpy().shape == (0, 7, WIDTH)
    assert outputs["sum of everything"].numpy() == 0
    short = tvm.runtime.tensor(np.zeros((3, 0, WIDTH), np.float32))
    outputs = dict(zip(names, main(short, short), strict=True))
    np.testing.assert_array_equal(outputs["sum of a middle axis"].numpy(), np.zeros((3, WIDTH)))


@pytest.mark.parametrize("level", LEVELS)
def test_extrema_propagate_nan_and_reach_infinity(level):
    x = torch.randn(2, 50, WIDTH)
    x[0, 3, 5] = torch.nan
    x[1] = -torch.inf
    outputs = _compiled(level)(tvm.runtime.tensor(x.numpy()), tvm.runtime.tensor((-x).numpy()))
    results = dict(zip(CASES, outputs, strict=True))
    np.testing.assert_array_equal(results["max of the last axis"].numpy(), x.amax(-1).numpy())
    expected = (x.amax(1) + (-x).amin(1)).numpy()
    np.testing.assert_array_equal(results["max and min"].numpy(), expected)


def test_only_what_is_not_understood_is_left_unscheduled():
    scheduled, _ = _lower(_relax_module(), CPU_TARGETS["x86-64-v3"])
    assert [name for name in unscheduled(scheduled) if "cumsum" not in name] == []
    assert len(unscheduled(scheduled)) == 1


def test_a_function_that_says_it_is_scheduled_is_not_touched():
    target = CPU_TARGETS["x86-64-v3"]
    once, _ = _lower(_relax_module(), target)
    twice = schedule_rest(once)
    for name, func in once.functions_items():
        if isinstance(func, tirx.PrimFunc) and name.name_hint not in unscheduled(once):
            assert twice[name].same_as(func)


def test_every_function_of_the_final_module_has_noalias():
    _, module = _lower(_relax_module(), CPU_TARGETS["x86-64-v3"])
    names = set()
    for name, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            names.add(name.name_hint)
            assert func.attrs["tirx.noalias"], name.name_hint
    assert any(name.startswith("shape_func") for name in names)


def test_a_maximum_that_cannot_be_scheduled_is_refused(monkeypatch):
    """Left to TVM's own loops it would lose NaN."""
    monkeypatch.setattr(schedule, "read_stage", lambda nest: None)
    with pytest.raises(NotImplementedError, match="extremum"):
        _lower(_relax_module(), CPU_TARGETS["x86-64-v3"])


@pytest.mark.parametrize("shape, axis", [((1, 5), 1), ((1, 1), 0), ((1, 40), 1), ((3, 2), 0)])
def test_the_largest_of_infinities_is_infinite_at_every_shape(shape, axis):
    source = te.placeholder(shape, "float32", "x")
    largest = topi.max(source, axis=axis)
    function = te.create_prim_func([source, largest]).with_attr("global_symbol", "main")
    target = CPU_TARGETS["x86-64-v3"]
    module = schedule.schedule_rest(tvm.IRModule({"main": function}))
    with tvm.transform.PassContext(**PASS_CONFIG):
        built = tvm.compile(module, target=tvm.target.Target(dict(target.llvm)))
    x = np.full(shape, -np.inf, np.float32)
    result = tvm.runtime.tensor(np.zeros(x.max(axis=axis).shape, np.float32))
    built["main"](tvm.runtime.tensor(x), result)
    np.testing.assert_array_equal(result.numpy(), x.max(axis=axis))
