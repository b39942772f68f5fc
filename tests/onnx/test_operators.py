"""Each operator that is read, beside ONNX Runtime: dtypes, dynamic sizes with 1, attributes, opsets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper

from tcexport.exporter.onnx import ops  # noqa: F401, fills the registry
from tcexport.exporter.onnx.registry import OPERATORS, Unreadable

from .files import as_onnxruntime, made, saved

SIZES = ({"n": 3, "m": 5}, {"n": 1, "m": 4}, {"n": 4, "m": 1})


def one(
    folder: Path,
    operator: str,
    inputs: dict[str, Any],
    *,
    constants: dict[str, Any] | None = None,
    order: list[str] | None = None,
    outputs: int = 1,
    opset: int = 18,
    sizes: Any = SIZES,
    leaves: Any = (),
    **attributes: Any,
) -> None:
    """A graph of one node, traced with its dims dynamic, too."""
    names = order or [*inputs, *(constants or {})]
    given = [f"y{at}" for at in range(outputs)]
    node = helper.make_node(operator, names, given, name=f"/{operator}", **attributes)
    path = saved(folder, made([node], inputs, given, constants, opset))
    opened = as_onnxruntime(path, *sizes, leaves=leaves)
    assert opened.graph.opset == opset


UNARY = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp",
    "Floor", "Identity", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
    "Sinh", "Sqrt", "Tan", "Tanh", "Softplus", "Softsign", "HardSwish", "Mish", "Elu", "Celu",
    "Selu", "HardSigmoid", "LeakyRelu", "ThresholdedRelu", "Shrink", "IsNaN", "IsInf",
]  # fmt: skip


@pytest.mark.parametrize("operator", UNARY)
def test_a_function_of_each_element(tmp_path: Path, operator: str) -> None:
    one(tmp_path, operator, {"x": ("float", ["n", "m"])})


@pytest.mark.parametrize("operator", ["Abs", "Neg", "Sign", "Relu"])
@pytest.mark.parametrize("kind", ["int32", "int64", "double"])
def test_of_integers_and_doubles(tmp_path: Path, operator: str, kind: str) -> None:
    one(tmp_path, operator, {"x": (kind, ["n", "m"])})


@pytest.mark.parametrize(
    ("operator", "attributes", "opset"),
    [
        ("Elu", {"alpha": 0.3}, 13),
        ("Celu", {"alpha": 2.0}, 13),
        ("Selu", {"alpha": 1.2, "gamma": 0.5}, 13),
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.1}, 13),
        ("LeakyRelu", {"alpha": 0.3}, 16),
        ("ThresholdedRelu", {"alpha": 0.2}, 13),
        ("Shrink", {"lambd": 0.3, "bias": 0.1}, 13),
        ("IsInf", {"detect_negative": 0}, 13),
        ("IsInf", {"detect_positive": 0}, 13),
        ("Gelu", {}, 20),
        ("Gelu", {"approximate": "tanh"}, 20),
    ],
)
def test_with_attributes(
    tmp_path: Path, operator: str, attributes: dict[str, Any], opset: int
) -> None:
    one(tmp_path, operator, {"x": ("float", ["n", "m"])}, opset=opset, **attributes)


def test_rounding_is_to_the_nearest_even_and_nan_passes(tmp_path: Path) -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, float("nan"), float("inf"), -float("inf")])
    for operator in ("Round", "IsNaN", "IsInf", "Relu", "Sigmoid", "Sign"):
        one(tmp_path, operator, {"x": ("float", ["n"])}, leaves=[x], sizes=({},))


BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min", "Mean", "Sum"]


@pytest.mark.parametrize("operator", BINARY)
@pytest.mark.parametrize(
    "shapes", [(["n", "m"], ["n", "m"]), (["n", "m"], ["m"]), (["n", "m"], [1])]
)
def test_arithmetic_is_broadcast(tmp_path: Path, operator: str, shapes: Any) -> None:
    if operator == "Pow":
        a, b = torch.rand(3, 5) + 0.5, torch.randn(3, 5)
        one(
            tmp_path,
            operator,
            {"a": ("float", ["n", "m"]), "b": ("float", ["n", "m"])},
            leaves=[a, b],
            sizes=({},),
        )
        return
    one(tmp_path, operator, {"a": ("float", shapes[0]), "b": ("float", shapes[1])})


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_integers_are_divided_towards_zero(tmp_path: Path, operator: str, kind: str) -> None:
    a = torch.tensor([-7, -7, 7, 7, 6, -6, 0]).to(torch.int32 if kind == "int32" else torch.int64)
    b = torch.tensor([2, -2, 2, -2, 3, 3, 5]).to(a.dtype)
    inputs = {"a": (kind, ["n"]), "b": (kind, ["n"])}
    one(tmp_path, operator, inputs, leaves=[a, b], sizes=({},))
    if operator == "Mod":
        one(tmp_path, operator, inputs, leaves=[a, b], sizes=({},), fmod=1)


def test_a_remainder_of_floats(tmp_path: Path) -> None:
    one(tmp_path, "Mod", {"a": ("float", ["n"]), "b": ("float", ["n"])}, fmod=1)


@pytest.mark.parametrize(
    "operator", ["Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "Greater"]
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_constant_on_either_side(tmp_path: Path, operator: str, side: int) -> None:
    order = ["c", "x"] if side else ["x", "c"]
    x = torch.rand(3, 4) + 0.5
    for constant in (np.float32(2.5), np.array([0.5, 1, 2, 3], np.float32)):
        one(
            tmp_path,
            operator,
            {"x": ("float", ["n", 4])},
            constants={"c": constant},
            order=order,
            leaves=[x],
            sizes=({},),
        )


@pytest.mark.parametrize("operator", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("kind", ["float", "int32", "int64"])
def test_comparisons(tmp_path: Path, operator: str, kind: str) -> None:
    one(tmp_path, operator, {"a": (kind, ["n", "m"]), "b": (kind, ["m"])})


@pytest.mark.parametrize("operator", ["And", "Or", "Xor"])
def test_logic(tmp_path: Path, operator: str) -> None:
    one(tmp_path, operator, {"a": ("bool", ["n", "m"]), "b": ("bool", ["m"])})
    one(tmp_path, "Not", {"a": ("bool", ["n", "m"])})


@pytest.mark.parametrize("operator", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits(tmp_path: Path, operator: str) -> None:
    one(tmp_path, operator, {"a": ("int32", ["n", "m"]), "b": ("int32", ["m"])})
    one(tmp_path, "BitwiseNot", {"a": ("int32", ["n", "m"])})
    for direction in ("LEFT", "RIGHT"):
        inputs = {"a": ("uint8", ["n"]), "b": ("uint8", ["n"])}
        one(tmp_path, "BitShift", inputs, direction=direction)


def test_where_and_clip(tmp_path: Path) -> None:
    inputs = {"c": ("bool", ["n", "m"]), "a": ("float", ["m"]), "b": ("float", ["n", 1])}
    one(tmp_path, "Where", inputs)
    one(
        tmp_path,
        "Where",
        {"c": ("bool", ["n", "m"])},
        constants={"a": np.float32(0), "b": np.float32(-np.inf)},
    )
    x = {"x": ("float", ["n", "m"])}
    one(tmp_path, "Clip", x, constants={"low": np.float32(-0.5), "high": np.float32(0.25)})
    one(tmp_path, "Clip", x, constants={"high": np.float32(0.25)}, order=["x", "", "high"])
    one(tmp_path, "Clip", x)
    one(tmp_path, "Clip", {**x, "low": ("float", []), "high": ("float", [])})
    one(tmp_path, "Clip", {"x": ("int64", ["n"])}, constants={"low": np.int64(-1)})


@pytest.mark.parametrize("source", ["float", "int32", "int64", "bool", "uint8", "half", "double"])
@pytest.mark.parametrize("target", [1, 6, 7, 9, 2, 10, 11])
def test_casts(tmp_path: Path, source: str, target: int) -> None:
    if source in ("float", "half", "double") and target == 2:
        pytest.skip("a negative float has no meaning as an unsigned integer")
    one(tmp_path, "Cast", {"x": (source, ["n", "m"])}, to=target)


def test_the_dtype_of_another(tmp_path: Path) -> None:
    one(tmp_path, "CastLike", {"x": ("float", ["n"]), "like": ("int64", ["m"])}, opset=19)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["n", "m"], ["m", "n"]),
        (["n", 3, "m"], ["m", 4]),
        (["n", 2, 3, "m"], ["n", 2, "m", 5]),
        (["m"], ["m", "n"]),
        (["n", "m"], ["m"]),
        (["m"], ["m"]),
    ],
)
def test_products(tmp_path: Path, a: Any, b: Any) -> None:
    one(tmp_path, "MatMul", {"a": ("float", a), "b": ("float", b)})
    one(tmp_path, "MatMul", {"a": ("int32", a), "b": ("int32", b)})


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"transB": 1},
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0},
        {"transA": 1},
        {"beta": 0.0},
    ],
)
@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (1,)])
def test_gemm(tmp_path: Path, attributes: dict[str, Any], bias: Any) -> None:
    a = [4, "n"] if attributes.get("transA") else ["n", 4]
    b = np.random.default_rng(0).normal(size=(6, 4) if attributes.get("transB") else (4, 6))
    constants = {"b": b.astype(np.float32)}
    if bias is not None:
        constants["c"] = np.random.default_rng(1).normal(size=bias).astype(np.float32)
    one(tmp_path, "Gemm", {"a": ("float", a)}, constants=constants, **attributes)


def test_einsum(tmp_path: Path) -> None:
    inputs = {"a": ("float", ["n", 2, "m"]), "b": ("float", ["n", 3, "m"])}
    one(tmp_path, "Einsum", inputs, equation="nim,njm->nij")
    one(tmp_path, "Einsum", inputs, equation="...im,...jm->...ij")


def test_products_of_integers(tmp_path: Path) -> None:
    inputs = {"a": ("uint8", ["n", 4]), "b": ("int8", [4, 3])}
    one(tmp_path, "MatMulInteger", inputs)
    zeros = {"az": np.uint8(3), "bz": np.int8(-2)}
    one(tmp_path, "MatMulInteger", inputs, constants=zeros)


CONV = [
    {},
    {"pads": [1, 2, 0, 1], "strides": [2, 1]},
    {"dilations": [2, 1], "pads": [1, 1, 1, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER"},
    {"auto_pad": "VALID"},
]
IMAGES = ({"n": 2, "h": 9, "w": 8}, {"n": 1, "h": 8, "w": 11})


@pytest.mark.parametrize("attributes", CONV)
@pytest.mark.parametrize("group", [1, 2])
def test_convolutions(tmp_path: Path, attributes: dict[str, Any], group: int) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(6, 4 // group, 3, 3)).astype(np.float32),
        "b": rng.normal(size=6).astype(np.float32),
    }
    x = {"x": ("float", ["n", 4, "h", "w"])}
    one(tmp_path, "Conv", x, constants=weights, group=group, sizes=IMAGES, **attributes)


def test_convolutions_over_other_axes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for rank in (1, 3):
        w = {"w": rng.normal(size=(3, 2, *[3] * rank)).astype(np.float32)}
        x = {"x": ("float", ["n", 2, *["h"] * rank])}
        one(tmp_path, "Conv", x, constants=w, sizes=({"n": 2, "h": 5},), pads=[1] * (2 * rank))


def test_convolutions_of_integers(tmp_path: Path) -> None:
    inputs = {"x": ("uint8", ["n", 2, "h", "w"])}
    w = np.random.default_rng(0).integers(0, 9, (3, 2, 3, 3)).astype(np.uint8)
    zeros = {"w": w, "xz": np.uint8(2), "wz": np.uint8(1)}
    one(tmp_path, "ConvInteger", inputs, constants=zeros, sizes=IMAGES, pads=[1, 1, 1, 1])


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
        {"strides": [2, 1], "pads": [0, 1, 1, 0]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"dilations": [2, 1], "group": 2},
        {"strides": [2, 2], "output_shape": [12, 14]},
    ],
)
def test_transposed_convolutions(tmp_path: Path, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    group = attributes.get("group", 1)
    weights = {"w": rng.normal(size=(4, 6 // group, 3, 3)).astype(np.float32)}
    weights["b"] = rng.normal(size=6).astype(np.float32)
    x = {"x": ("float", ["n", 4, "h", "w"])}
    one(tmp_path, "ConvTranspose", x, constants=weights, sizes=IMAGES, **attributes)


def test_columns_to_images(tmp_path: Path) -> None:
    x = {"x": ("float", ["n", 12, 12])}
    sizes = {"i": np.array([4, 5]), "b": np.array([2, 2])}
    one(tmp_path, "Col2Im", x, constants=sizes)


POOLS = [
    {"kernel_shape": [3, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 0]},
    {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
]


@pytest.mark.parametrize("attributes", POOLS)
def test_pooling(tmp_path: Path, attributes: dict[str, Any]) -> None:
    x = {"x": ("float", ["n", 4, "h", "w"])}
    one(tmp_path, "MaxPool", x, sizes=IMAGES, **attributes)
    one(tmp_path, "AveragePool", x, sizes=IMAGES, **attributes)
    if not attributes.get("ceil_mode"):
        one(tmp_path, "AveragePool", x, sizes=IMAGES, count_include_pad=1, **attributes)


def test_positions_of_the_largest(tmp_path: Path) -> None:
    x = {"x": ("float", ["n", 4, "h", "w"])}
    one(tmp_path, "MaxPool", x, outputs=2, sizes=IMAGES, kernel_shape=[2, 2], strides=[2, 2])
    one(tmp_path, "MaxPool", x, sizes=IMAGES, kernel_shape=[2, 2], dilations=[2, 1])
    for operator in ("GlobalAveragePool", "GlobalMaxPool"):
        one(tmp_path, operator, x, sizes=IMAGES)


def test_normalizations(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def of(size: int, count: int) -> dict[str, Any]:
        return {f"c{at}": rng.random(size).astype(np.float32) + 0.5 for at in range(count)}

    x = {"x": ("float", ["n", 4, "h", "w"])}
    for opset in (13, 14, 15):
        one(tmp_path, "BatchNormalization", x, constants=of(4, 4), sizes=IMAGES, opset=opset)
    one(tmp_path, "InstanceNormalization", x, constants=of(4, 2), sizes=IMAGES)
    one(tmp_path, "GroupNormalization", x, constants=of(4, 2), sizes=IMAGES, num_groups=2, opset=21)
    one(tmp_path, "LpNormalization", x, sizes=IMAGES, axis=1, p=1)
    one(tmp_path, "LpNormalization", x, sizes=IMAGES)
    one(tmp_path, "LRN", x, sizes=IMAGES, size=3, alpha=0.1, beta=0.6, bias=1.5)
    one(tmp_path, "MeanVarianceNormalization", x, sizes=IMAGES)
    y = {"x": ("float", ["n", "m", 6])}
    one(tmp_path, "LayerNormalization", y, constants=of(6, 2))
    one(tmp_path, "LayerNormalization", y, constants=of(6, 1), outputs=3, epsilon=1e-3)
    scale = {"s": rng.random((3, 6)).astype(np.float32)}
    one(tmp_path, "LayerNormalization", {"x": ("float", ["n", 3, 6])}, constants=scale, axis=1)
    one(tmp_path, "RMSNormalization", y, constants=of(6, 1), opset=23)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(tmp_path: Path, operator: str, axis: int) -> None:
    one(tmp_path, operator, {"x": ("float", ["n", "m", 3])}, axis=axis, opset=13)


REDUCTIONS = [
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
]  # fmt: skip


@pytest.mark.parametrize("operator", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions_of_both_forms(tmp_path: Path, operator: str, keep: int) -> None:
    x = {"x": ("float", ["n", "m", 3])}
    if operator == "ReduceLogSum":
        leaves: Any = [torch.rand(2, 4, 3) + 0.1]
    else:
        leaves = ()
    sizes = ({},) if leaves else SIZES
    common: dict[str, Any] = {"keepdims": keep, "sizes": sizes, "leaves": leaves}
    axes = {"axes": np.array([0, -1])}
    one(tmp_path, operator, x, constants=axes, **common)
    one(tmp_path, operator, x, **common)
    if operator in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"):
        with pytest.raises(Unreadable, match="noop_with_empty_axes=1"):
            one(tmp_path, operator, x, noop_with_empty_axes=1, **common)
    else:
        one(tmp_path, operator, x, noop_with_empty_axes=1, **common)
    if operator != "ReduceSum":
        one(tmp_path, operator, x, opset=13, axes=[1, 2], **common)
    else:
        one(tmp_path, operator, x, opset=13, constants=axes, **common)


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
def test_reductions_of_integers_keep_their_dtype(tmp_path: Path, operator: str) -> None:
    for kind in ("int32", "int64"):
        one(tmp_path, operator, {"x": (kind, ["n", "m"])}, constants={"axes": np.array([1])})


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_reductions_of_integers_that_give_no_integers_are_refused(
    tmp_path: Path, operator: str
) -> None:
    with pytest.raises(Unreadable, match="of integers is not read"):
        one(tmp_path, operator, {"x": ("int32", [2, 3])}, sizes=({},))


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_positions_among_equals(tmp_path: Path, operator: str) -> None:
    x = {"x": ("int32", ["n", "m"])}
    for last in (0, 1):
        one(tmp_path, operator, x, axis=1, keepdims=0, select_last_index=last)
        one(tmp_path, operator, x, axis=0, select_last_index=last)


def test_cumulative_sums(tmp_path: Path) -> None:
    for exclusive in (0, 1):
        for reverse in (0, 1):
            for kind in ("float", "int64"):
                one(
                    tmp_path,
                    "CumSum",
                    {"x": (kind, ["n", "m"])},
                    constants={"axis": np.int64(-1)},
                    exclusive=exclusive,
                    reverse=reverse,
                )


def test_the_largest_with_ties(tmp_path: Path) -> None:
    for kind in ("float", "int64"):
        for largest in (0, 1):
            x = {"x": (kind, ["n", 6])}
            k = {"k": np.array([4])}
            one(tmp_path, "TopK", x, constants=k, outputs=2, largest=largest)
    one(
        tmp_path,
        "TopK",
        {"x": ("float", [6, "m"])},
        constants={"k": np.array([2])},
        outputs=2,
        axis=0,
    )


def test_reshapes(tmp_path: Path) -> None:
    x = {"x": ("float", ["n", "m", 6])}
    for shape in ([0, -1], [-1, 6], [0, 0, 2, 3], [-1], [1, 0, -1]):
        one(tmp_path, "Reshape", x, constants={"s": np.array(shape)}, opset=13)
    one(tmp_path, "Reshape", x, constants={"s": np.array([-1, 2, 3])}, allowzero=1)
    for axis in (0, 1, 2, 3, -1):
        one(tmp_path, "Flatten", x, axis=axis)
    one(tmp_path, "Transpose", x)
    one(tmp_path, "Transpose", x, perm=[1, 2, 0])
    one(tmp_path, "Unsqueeze", x, constants={"a": np.array([-1, 0])}, opset=13)
    one(tmp_path, "Squeeze", {"x": ("float", [1, "n", 1])}, constants={"a": np.array([0, -1])})
    one(tmp_path, "Squeeze", {"x": ("float", [1, 3, 1])})
    one(tmp_path, "Expand", {"x": ("float", ["n", 1])}, constants={"s": np.array([2, 1, 4])})
    one(tmp_path, "Tile", x, constants={"r": np.array([2, 1, 3])})


def test_parts_and_wholes(tmp_path: Path) -> None:
    x = {"x": ("float", ["n", 6])}
    one(tmp_path, "Concat", {"a": ("float", ["n", 2]), "b": ("float", ["n", 3])}, axis=-1)
    one(tmp_path, "Split", x, constants={"s": np.array([1, 2, 3])}, outputs=3, axis=1)
    one(tmp_path, "Split", x, outputs=3, axis=1, opset=13)
    one(tmp_path, "Split", x, outputs=4, axis=1, num_outputs=4)
    for starts, ends, axes, steps in (
        ([1], [5], [1], [2]),
        ([-4], [2**62], [-1], [1]),
        ([0, 0], [2, -1], [0, 1], [1, 1]),
        ([-1], [-(2**62)], [1], [-1]),
        ([4], [0], [1], [-2]),
        ([-2], [-100], [1], [-3]),
        ([-100], [-100], [1], [-1]),
        ([-1], [-(2**62)], [0], [-1]),
        ([3], [1], [1], [1]),
    ):
        parts = {"s": starts, "e": ends, "a": axes, "t": steps}
        constants = {name: np.array(value) for name, value in parts.items()}
        one(tmp_path, "Slice", x, constants=constants, opset=13)
    one(tmp_path, "DepthToSpace", {"x": ("float", ["n", 8, "m", 3])}, blocksize=2)
    one(tmp_path, "DepthToSpace", {"x": ("float", ["n", 8, "m", 3])}, blocksize=2, mode="CRD")
    one(tmp_path, "SpaceToDepth", {"x": ("float", ["n", 2, 4, 6])}, blocksize=2)
    for upper in (0, 1):
        one(tmp_path, "Trilu", {"x": ("float", ["n", "m"])}, upper=upper)
        k = {"k": np.int64(-1)}
        one(tmp_path, "Trilu", {"x": ("float", ["n", "m"])}, constants=k, upper=upper)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads(tmp_path: Path, mode: str) -> None:
    sizes = ({"n": 3, "m": 5}, {"n": 2, "m": 4})
    opset = 19 if mode == "wrap" else 13
    for x, pads in (
        (["n", "m"], [0, 1, 0, 2]),
        (["n", "m"], [1, 1, 1, 0]),
        (["n", 2, 3, "m"], [0, 0, 1, 2, 0, 0, 2, 1]),
        (["m"], [1, 2]),
    ):
        given = {"x": ("float", x)}
        pad = {"p": np.array(pads)}
        one(tmp_path, "Pad", given, constants=pad, mode=mode, sizes=sizes, opset=opset)
    if mode == "constant":
        more = {"p": np.array([1, -1]), "v": np.float32(7), "a": np.array([1])}
        one(tmp_path, "Pad", {"x": ("float", ["n", "m"])}, constants=more, sizes=sizes)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gathering(tmp_path: Path, axis: int) -> None:
    x = {"x": ("float", [6, 7])}
    for indices in (np.array([[0, -1], [2, -6]]), np.int64(-2), np.array([], np.int64)):
        one(tmp_path, "Gather", x, constants={"i": indices}, axis=axis)
    i = torch.tensor([[0, -1, 3], [5, -6, 1]])
    inputs = {"x": ("float", [6, 7]), "i": ("int64", ["n", "m"])}
    leaves = [torch.randn(6, 7), i]
    one(tmp_path, "Gather", inputs, axis=axis, leaves=leaves, sizes=({},))
    one(tmp_path, "GatherElements", inputs, axis=axis, leaves=leaves, sizes=({},))


def test_gathering_by_coordinates(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4)
    for indices, batch in (
        ([[0, -1], [1, 2]], 0),
        ([[[0, 1, 2]], [[1, -2, 3]]], 0),
        ([[[1], [2]], [[-1], [0]]], 1),
    ):
        given = torch.tensor(indices)
        dims: list[Any] = ["n", *given.shape[1:]]
        inputs = {"x": ("float", [2, 3, 4]), "i": ("int64", [2, *dims[1:]])}
        one(tmp_path, "GatherND", inputs, leaves=[x, given], sizes=({},), batch_dims=batch)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scattering(tmp_path: Path, reduction: str) -> None:
    x, places = torch.randn(4, 5), torch.tensor([[0, -1, 2], [3, 1, -4]])
    inputs = {"x": ("float", [4, 5]), "i": ("int64", [2, 3]), "u": ("float", [2, 3])}
    leaves = [x, places, torch.randn(2, 3)]
    common: dict[str, Any] = {"leaves": leaves, "sizes": ({},), "reduction": reduction}
    one(tmp_path, "ScatterElements", inputs, **common)
    inputs = {"x": ("float", [4, 5]), "i": ("int64", [3, 1]), "u": ("float", [3, 5])}
    common["leaves"] = [x, torch.tensor([[0], [-1], [2]]), torch.randn(3, 5)]
    one(tmp_path, "ScatterND", inputs, **common)
    inputs = {"x": ("float", [4, 5]), "i": ("int64", [2, 2]), "u": ("float", [2])}
    common["leaves"] = [x, torch.tensor([[0, 1], [3, -2]]), torch.randn(2)]
    one(tmp_path, "ScatterND", inputs, **common)


def test_scattering_to_one_position_twice(tmp_path: Path) -> None:
    inputs = {"x": ("float", [4, 5, 2]), "i": ("int64", [3, 1, 2]), "u": ("float", [3, 1, 2])}
    leaves = [torch.randn(4, 5, 2), torch.tensor([[[1, -1]], [[0, 0]], [[-3, 4]]])]
    leaves.append(torch.randn(3, 1, 2))
    for reduction in ("add", "mul", "max", "min"):
        common: dict[str, Any] = {"leaves": leaves, "sizes": ({},), "reduction": reduction}
        one(tmp_path, "ScatterND", inputs, **common)


def test_positions_that_hold_something(tmp_path: Path) -> None:
    one(tmp_path, "NonZero", {"x": ("int32", ["n", "m"])})
    c = torch.tensor([True, False, True])
    inputs = {"x": ("float", [3, 4]), "c": ("bool", [3])}
    one(tmp_path, "Compress", inputs, axis=0, leaves=[torch.randn(3, 4), c], sizes=({},))
    one(tmp_path, "Compress", inputs, leaves=[torch.randn(3, 4), c], sizes=({},))


def test_tensors_made_of_sizes(tmp_path: Path) -> None:
    x = {"x": ("float", ["n", "m"])}
    one(tmp_path, "Shape", x)
    one(tmp_path, "Shape", x, start=1, opset=15)
    one(tmp_path, "Shape", x, end=-1, opset=15)
    one(tmp_path, "Size", x)
    one(tmp_path, "EyeLike", x, k=1, dtype=7)
    fill = numpy_helper.from_array(np.array([3], np.int64))
    one(tmp_path, "ConstantOfShape", {}, constants={"s": np.array([2, 3])}, value=fill)
    bounds = {"a": np.int64(1), "b": np.int64(9), "c": np.int64(3)}
    one(tmp_path, "Range", {}, constants=bounds)
    one(tmp_path, "Range", {}, constants={k: np.float32(v) / 4 for k, v in bounds.items()})
    indices = {"i": ("int64", ["n", "m"])}
    for axis in (-1, 0, 1):
        depth = {"d": np.int64(4), "v": np.array([0.5, 2], np.float32)}
        one(tmp_path, "OneHot", indices, constants=depth, axis=axis)


RESIZES = [
    ("nearest", "asymmetric", "floor", [1, 1, 2, 2]),
    ("nearest", "asymmetric", "floor", [1, 1, 1.5, 0.6]),
    ("nearest", "half_pixel", "round_prefer_floor", [1, 1, 2, 3]),
    ("nearest", "half_pixel", "round_prefer_ceil", [1, 1, 0.5, 2]),
    ("nearest", "pytorch_half_pixel", "round_prefer_ceil", [1, 1, 2, 3]),
    ("linear", "half_pixel", "", [1, 1, 2, 1.5]),
    ("linear", "pytorch_half_pixel", "", [1, 1, 0.5, 2]),
    ("linear", "align_corners", "", [1, 1, 2, 3]),
    ("cubic", "half_pixel", "", [1, 1, 2, 2]),
    ("cubic", "align_corners", "", [1, 1, 2, 3]),
    # By positions: torch has no function that takes these elements.
    ("nearest", "half_pixel", "round_prefer_floor", [1, 1, 0.6, 1.5]),
    ("nearest", "half_pixel", "floor", [1, 1, 1.5, 0.75]),
    ("nearest", "asymmetric", "ceil", [1, 1, 2, 0.6]),
    ("nearest", "align_corners", "round_prefer_floor", [1, 1, 2, 3]),
    ("nearest", "align_corners", "round_prefer_ceil", [1, 1, 3, 2]),
    ("linear", "asymmetric", "", [1, 1, 2, 1.5]),
    ("linear", "half_pixel_symmetric", "", [1, 1, 0.6, 2]),
    ("cubic", "asymmetric", "", [1, 1, 2, 1.5]),
    ("nearest", "pytorch_half_pixel", "round_prefer_ceil", [1, 1, 0.5, 0.7]),
]


@pytest.mark.parametrize("case", RESIZES, ids=lambda case: "-".join(map(str, case)))
def test_resizing(tmp_path: Path, case: Any) -> None:
    mode, transform, nearest, scales = case
    more = {"nearest_mode": nearest} if nearest else {}
    x = {"x": ("float", ["n", 2, "h", "w"])}
    common: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": transform, **more}
    order = ["x", "", "s"]
    scale = {"s": np.array(scales, np.float32)}
    for opset in (13, 18):
        one(
            tmp_path, "Resize", x, constants=scale, order=order, sizes=IMAGES, opset=opset, **common
        )
    scale = {"s": np.array(scales[2:], np.float32)}
    one(tmp_path, "Resize", x, constants=scale, order=order, sizes=IMAGES, axes=[2, 3], **common)
    sizes = {"s": np.array([2, 2, 7, 5])}
    order = ["x", "", "", "s"]
    one(tmp_path, "Resize", x, constants=sizes, order=order, sizes=IMAGES[:1], **common)
    if transform in ("pytorch_half_pixel", "align_corners"):
        sizes = {"s": np.array([2, 2, 1, 1])}
        one(tmp_path, "Resize", x, constants=sizes, order=order, sizes=IMAGES[:1], **common)


def test_resizing_by_other_kernels_and_of_integers(tmp_path: Path) -> None:
    x: dict[str, Any] = {"x": ("float", ["n", 2, "h", "w"])}
    scales = {"s": np.array([1, 1, 1.5, 0.8], np.float32)}
    common: dict[str, Any] = {"constants": scales, "order": ["x", "", "s"], "sizes": IMAGES}
    for more in ({"cubic_coeff_a": -0.5}, {"exclude_outside": 1}):
        one(tmp_path, "Resize", x, mode="cubic", **common, **more)
    integers = {"x": ("int32", ["n", 2, "h", "w"])}
    one(tmp_path, "Resize", integers, mode="nearest", **common)


def test_scales_are_multiplied_as_by_onnxruntime(tmp_path: Path) -> None:
    for mode in ("nearest", "linear"):
        for scale in (0.1, 0.29, 0.7, 1.1, 1.4, 2.3):
            for size in (10, 30, 100):
                scales = {"s": np.array([1, 1, scale], np.float32)}
                image = {"x": ("float", [1, 2, size])}
                given: dict[str, Any] = {"constants": scales, "order": ["x", "", "s"]}
                one(tmp_path, "Resize", image, **given, mode=mode, sizes=({},))


def test_sampling_at_a_grid(tmp_path: Path) -> None:
    inputs = {"x": ("float", ["n", 2, "h", "w"]), "g": ("float", ["n", 3, 4, 2])}
    for padding in ("zeros", "border", "reflection"):
        for mode in ("bilinear", "nearest"):
            for aligned in (0, 1):
                common: dict[str, Any] = {"padding_mode": padding, "align_corners": aligned}
                one(tmp_path, "GridSample", inputs, mode=mode, opset=16, sizes=IMAGES, **common)
    one(tmp_path, "GridSample", inputs, mode="linear", opset=20, sizes=IMAGES)
    theta = {"t": ("float", ["n", 2, 3])}
    size = {"s": np.array([2, 1, 4, 5])}
    one(tmp_path, "AffineGrid", theta, constants=size, opset=20, sizes=({"n": 2},))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_layers(tmp_path: Path, kind: str, direction: str) -> None:
    rng = np.random.default_rng(0)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    both = 2 if direction == "bidirectional" else 1
    weights = {
        "w": rng.normal(size=(both, gates * 5, 3)).astype(np.float32),
        "r": rng.normal(size=(both, gates * 5, 5)).astype(np.float32),
        "b": rng.normal(size=(both, gates * 10)).astype(np.float32),
    }
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    common: dict[str, Any] = {"hidden_size": 5, "direction": direction, **more}
    outputs = 3 if kind == "LSTM" else 2
    x = {"x": ("float", ["n", "m", 3])}
    one(tmp_path, kind, x, constants=weights, outputs=outputs, opset=14, **common)
    unbiased = {name: weights[name] for name in "wr"}
    h = {**x, "h": ("float", [both, "m", 5])}
    order = ["x", "w", "r", "", "", "h"]
    if kind == "LSTM":
        h["c"], order = ("float", [both, "m", 5]), [*order, "c"]
    one(tmp_path, kind, h, constants=unbiased, order=order, outputs=outputs, opset=14, **common)


def test_quantization(tmp_path: Path) -> None:
    x = {"x": ("float", ["n", 4])}
    one_scale = {"s": np.float32(0.05), "z": np.int8(3)}
    channels = {
        "s": np.array([0.1, 0.2, 0.3, 0.05], np.float32),
        "z": np.array([0, 1, 2, 3], np.uint8),
    }
    one(tmp_path, "QuantizeLinear", x, constants=one_scale)
    one(tmp_path, "QuantizeLinear", x, constants=channels, axis=1)
    one(tmp_path, "DequantizeLinear", {"x": ("int8", ["n", 4])}, constants=one_scale)
    one(tmp_path, "DequantizeLinear", {"x": ("uint8", ["n", 4])}, constants=channels, axis=1)
    one(tmp_path, "DynamicQuantizeLinear", x, outputs=3)


def test_attention_of_opset_23(tmp_path: Path) -> None:
    four = {name: ("float", ["n", 4, "m", 8]) for name in "qkv"}
    one(tmp_path, "Attention", four, opset=23)
    one(tmp_path, "Attention", four, opset=23, is_causal=1, scale=0.3)
    grouped = {
        "q": ("float", ["n", 4, "m", 8]),
        "k": ("float", ["n", 2, "m", 8]),
        "v": ("float", ["n", 2, "m", 8]),
    }
    one(tmp_path, "Attention", grouped, opset=23)
    masked = {**four, "mask": ("float", ["m", "m"])}
    one(tmp_path, "Attention", masked, opset=23)
    three = {name: ("float", ["n", "m", 16]) for name in "qkv"}
    one(tmp_path, "Attention", three, opset=23, q_num_heads=4, kv_num_heads=4)
    past = {
        **four,
        "mask": ("float", ["m", 7]),
        "pk": ("float", ["n", 4, 2, 8]),
        "pv": ("float", ["n", 4, 2, 8]),
    }
    one(tmp_path, "Attention", past, opset=23, outputs=3, sizes=({"n": 2, "m": 5},))


def test_attention_with_softcap_and_shown_scores(tmp_path: Path) -> None:
    four = {name: ("float", ["n", 4, "m", 8]) for name in "qkv"}
    for more in ({"softcap": 2.0}, {"softcap": 1.5, "is_causal": 1}):
        one(tmp_path, "Attention", four, opset=23, **more)
    masked = {**four, "mask": ("float", ["m", "m"])}
    for shown in (0, 2, 3):
        mode: dict[str, Any] = {"qk_matmul_output_mode": shown, "outputs": 4}
        order = ["q", "k", "v", "mask", "", ""]
        one(tmp_path, "Attention", masked, opset=23, order=order, **mode)


def test_rotary_embeddings_of_opset_23(tmp_path: Path) -> None:
    x = {
        "x": ("float", ["n", 2, "m", 8]),
        "c": ("float", ["n", "m", 4]),
        "s": ("float", ["n", "m", 4]),
    }
    for interleaved in (0, 1):
        one(tmp_path, "RotaryEmbedding", x, opset=23, interleaved=interleaved)


@pytest.mark.parametrize(
    "attributes",
    [{"value_int": 3}, {"value_ints": [1, 2]}, {"value_float": 0.5}, {"value_floats": [0.5, 2.0]}],
)
def test_constants_of_each_form(tmp_path: Path, attributes: dict[str, Any]) -> None:
    kind = "int64" if "int" in next(iter(attributes)) else "float"
    nodes = [
        helper.make_node("Constant", [], ["c"], **attributes),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    as_onnxruntime(saved(tmp_path, made(nodes, {"x": (kind, ["n", 2])}, ["y"])), {"n": 3})


def test_an_extreme_of_no_elements(tmp_path: Path) -> None:
    for operator in ("ReduceMax", "ReduceMin"):
        for kind in ("float", "int32"):
            x, axes = {"x": (kind, [2, 0, 3])}, {"axes": np.array([1])}
            one(tmp_path, operator, x, constants=axes, sizes=({},), opset=20)


@pytest.mark.parametrize("operator", ["And", "Or", "Xor"])
def test_sizes_chosen_by_conditions_that_are_combined(tmp_path: Path, operator: str) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Equal", ["shape", "a"], ["first"]),
        helper.make_node("Greater", ["shape", "b"], ["second"]),
        helper.make_node(operator, ["first", "second"], ["both"]),
        helper.make_node("Where", ["both", "c", "d"], ["repeats"]),
        helper.make_node("Tile", ["x", "repeats"], ["y"]),
    ]
    given = {"a": [3, 5], "b": [2, 5], "c": [2, 2], "d": [1, 3]}
    constants = {name: np.array(value) for name, value in given.items()}
    as_onnxruntime(saved(tmp_path, made(nodes, {"x": ("float", [3, 5])}, ["y"], constants)))


def test_a_constant_cast_like_another_stays_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("CastLike", ["c", "x"], ["fill"]),
        helper.make_node("Pad", ["x", "pads", "fill"], ["y"]),
    ]
    constants = {"c": np.float64(1.5), "pads": np.array([0, 1, 2, 0])}
    model = made(nodes, {"x": ("float", ["n", 2])}, ["y"], constants, opset=19)
    as_onnxruntime(saved(tmp_path, model), {"n": 3})


def test_dropout_is_nothing(tmp_path: Path) -> None:
    one(tmp_path, "Dropout", {"x": ("float", ["n", "m"])}, outputs=2)


def test_the_page_names_every_operator() -> None:
    page = Path(__file__).parents[2] / "docs" / "onnx.md"
    listed = page.read_text(encoding="utf-8").partition("## Operators")[2]
    paragraph = next(each for each in listed.split("\n\n") if each.startswith("`Abs`"))
    assert set(re.findall(r"`(\w+)`", paragraph)) == {*OPERATORS, "If"}


def test_every_operator_is_tried_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert not [name for name in OPERATORS if f'"{name}"' not in text]
