"""What an .onnx file may say, and what is refused of it: names, types, hostile and broken files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tcexport import ExportError, UsageError
from tcexport.exporter.export import check
from tcexport.exporter.onnx.source import open_onnx
from tcexport.exporter.options import dynamic_from_python
from tcexport.exporter.source import load_source

from .files import agree, as_onnxruntime, leaves_at, made, saved

Folder = Path


def add_one(dims: Any = ("n", 4), **more: Any) -> onnx.ModelProto:
    node = helper.make_node("Add", ["x", "c"], ["y"], name="/add")
    return made([node], {"x": ("float", list(dims))}, ["y"], {"c": np.float32(1)}, **more)


def refused(path: Path, **more: Any) -> str:
    with pytest.raises((UsageError, ExportError)) as caught:
        load_source(str(path), **more)
    return str(caught.value)


# --- names and ranges -----------------------------------------------------------------------------


def test_named_dims_are_dynamic_and_equal_everywhere(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    inputs = {"a": ("float", ["batch", "inner"]), "b": ("float", ["inner", 5])}
    source = load_source(str(saved(tmp_path, made([node], inputs, ["y"]))))
    assert source.axes == {"a": ("batch", "inner"), "b": ("inner", None)}
    assert source.dynamic == ("batch", "inner")
    assert source.args[0].shape[1] == source.args[1].shape[0]
    report = check(source, dynamic=dynamic_from_python({"inner": (2, 8)}))
    assert {dim.name: dim.span() for dim in report.dims} == {"batch": "1..", "inner": "2..8"}


def test_axes_without_a_name_are_refused_with_what_to_type(tmp_path: Path) -> None:
    path = saved(tmp_path, add_one([None, 4]))
    message = refused(path)
    assert "TC132" in message and "x axis 0: no name" in message
    assert "try: --axes x=batch,_" in message
    named = load_source(str(path), axes=["x=rows,_"], inputs=["x=float32[3,4]"])
    assert named.axes == {"x": ("rows", None)}
    images = refused(saved(tmp_path, add_one([None, 3, None, None])))
    assert "try: --axes x=batch,_,height,width" in images
    strange = refused(saved(tmp_path, add_one(["batch size", 4])))
    assert "'batch size' cannot name a dim" in strange and "--axes x=batch_size,_" in strange


def test_an_axis_may_be_an_expression(tmp_path: Path) -> None:
    source = load_source(str(saved(tmp_path, add_one(["2*half", "half + 1"]))))
    report = check(source, dynamic={})
    assert [(dim.name, dim.lo) for dim in report.dims] == [("half", 1)]


def test_an_input_given_by_hand_sets_the_sizes(tmp_path: Path) -> None:
    source = load_source(str(saved(tmp_path, add_one())), inputs=["x=float32[7,4]"])
    assert source.args[0].shape == (7, 4) and source.dynamic == ("n",)


def test_names_that_are_none_of_pythons_are_told(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["input.1", "class"], ["out:0"], name="/a\n/b")
    inputs = {"input.1": ("float", ["n"]), "class": ("float", ["n"])}
    source = load_source(str(saved(tmp_path, made([node], inputs, ["out:0"]))))
    assert list(source.axes) == ["input_1", "class_"]
    assert source.notes[0].code == "TC134" and "input.1 is input_1" in source.notes[0].message


def test_weights_keep_their_names(tmp_path: Path) -> None:
    weight = np.ones((4, 4), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "layers.0.weight"], ["h"]),
        helper.make_node("MatMul", ["h", "layers.0"], ["k"]),
        helper.make_node("MatMul", ["k", "onnx::MatMul_7"], ["y"]),
    ]
    names = ("layers.0.weight", "layers.0", "onnx::MatMul_7")
    model = made(nodes, {"x": ("float", ["n", 4])}, ["y"], dict.fromkeys(names, weight))
    opened = as_onnxruntime(saved(tmp_path, model), {"n": 3})
    assert set(opened.module.state_dict()) == {"layers.0.weight", "layers.0_2", "onnx_MatMul_7"}


def test_several_outputs_come_by_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["b.c"])]
    opened = open_onnx(saved(tmp_path, made(nodes, {"x": ("float", ["n"])}, ["b.c", "a"])))
    assert list(opened.module(torch.ones(2))) == ["b.c", "a"]


# --- sizes that the graph computes ----------------------------------------------------------------


def exporters_view() -> onnx.ModelProto:
    """Shape, Gather, Unsqueeze, Concat, Reshape and back, as exporters write them at opset 13."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"], axis=0),
        helper.make_node("Gather", ["s", "one"], ["t"], axis=0),
        helper.make_node("Div", ["t", "two"], ["half"]),
        helper.make_node("Unsqueeze", ["b", "front"], ["b1"]),
        helper.make_node("Unsqueeze", ["half", "front"], ["h1"]),
        helper.make_node("Concat", ["b1", "h1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["pairs"]),
        helper.make_node("Range", ["zero", "half", "one"], ["steps"]),
        helper.make_node("Cast", ["steps"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "front"], ["row"]),
        helper.make_node("ReduceSum", ["pairs", "last"], ["sums"], keepdims=0),
        helper.make_node("Add", ["sums", "row"], ["y"]),
    ]
    constants = {
        "zero": np.int64(0), "one": np.int64(1), "two": np.int64(2),
        "front": np.array([0]), "rest": np.array([-1]), "last": np.array([-1]),
    }  # fmt: skip
    return made(nodes, {"x": ("float", ["batch", "2*pairs"])}, ["y"], constants, opset=13)


def test_sizes_that_the_graph_computes_stay_symbols(tmp_path: Path) -> None:
    path = saved(tmp_path, exporters_view())
    as_onnxruntime(path, {"batch": 2, "2*pairs": 6}, {"batch": 1, "2*pairs": 2})
    report = check(load_source(str(path)), dynamic={})
    assert {dim.name: dim.span() for dim in report.dims} == {"batch": "1..", "pairs": "1.."}
    assert not report.contract.guards


def test_the_limit_of_a_range_is_told_with_the_node(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1),
        helper.make_node("Slice", ["table", "zero", "s", "zero"], ["t"], name="/positions"),
        helper.make_node("Add", ["x", "t"], ["y"], name="/add"),
    ]
    constants = {"table": np.arange(9, dtype=np.float32), "zero": np.array([0])}
    path = saved(tmp_path, made(nodes, {"x": ("float", ["n", "m"])}, ["y"], constants))
    with pytest.raises(ExportError) as caught:
        check(load_source(str(path)), dynamic=dynamic_from_python({"m": (1, 64)}))
    message = str(caught.value)
    assert "TC210" in message and "m <= 9" in message
    assert "net.onnx:4   y = Add(x, t)  # /add" in message


def test_a_small_table_may_be_cut_at_a_dynamic_size(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1),
        helper.make_node("Slice", ["ids", "zero", "s", "one"], ["cut"]),
        helper.make_node("Gather", ["rows", "cut"], ["picked"]),
        helper.make_node("Squeeze", ["picked", "zero"], ["t"]),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    given = {"ids": np.arange(8).reshape(1, 8), "rows": np.arange(8, dtype=np.float32)}
    constants = {**given, "zero": np.array([0]), "one": np.array([1])}
    path = saved(tmp_path, made(nodes, {"x": ("float", ["n", "m"])}, ["y"], constants))
    as_onnxruntime(path, {"n": 2, "m": 3}, {"n": 1, "m": 8})
    report = check(load_source(str(path)), dynamic=dynamic_from_python({"m": (1, 8)}))
    assert {dim.name: dim.span() for dim in report.dims} == {"n": "1..", "m": "1..8"}


def test_positions_of_several_axes_have_ranges_of_their_own(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Gather", ["s", "one"], ["m"]),
        helper.make_node("Range", ["zero", "n", "one"], ["i"]),
        helper.make_node("Range", ["zero", "m", "one"], ["j"]),
        helper.make_node("Unsqueeze", ["i", "last"], ["column"]),
        helper.make_node("Expand", ["column", "s"], ["rows"]),
        helper.make_node("Expand", ["j", "s"], ["columns"]),
        helper.make_node("Unsqueeze", ["rows", "last"], ["a"]),
        helper.make_node("Unsqueeze", ["columns", "last"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["places"], axis=-1),
        helper.make_node("GatherND", ["x", "places"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1), "last": np.array([-1])}
    path = saved(tmp_path, made(nodes, {"x": ("float", ["n", "m"])}, ["y"], constants))
    as_onnxruntime(path, {"n": 2, "m": 3}, {"n": 4, "m": 1})
    report = check(load_source(str(path)), dynamic=dynamic_from_python({"n": (1, 4), "m": (1, 9)}))
    assert not report.contract.guards


def test_a_range_of_floats_up_to_a_size_needs_no_guard(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Squeeze", ["s"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Range", ["zero", "f", "two"], ["steps"]),
        helper.make_node("ReduceSum", ["x"], ["sum"]),
        helper.make_node("Add", ["steps", "sum"], ["y"]),
    ]
    constants = {"zero": np.float32(0), "two": np.float32(2)}
    path = saved(tmp_path, made(nodes, {"x": ("float", ["n"])}, ["y"], constants))
    as_onnxruntime(path, {"n": 5}, {"n": 4}, {"n": 1})
    report = check(load_source(str(path)), dynamic={})
    assert [dim.span() for dim in report.dims] == ["1.."] and not report.contract.guards


def test_parts_of_a_split_are_reshaped_at_one_step_too(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["q", "k"], axis=2, num_outputs=2),
        helper.make_node("Reshape", ["q", "heads"], ["a"]),
        helper.make_node("Reshape", ["k", "heads"], ["b"]),
        helper.make_node("Transpose", ["a"], ["at"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["b"], ["bt"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["at", "bt"], ["y"]),
    ]
    inputs = {"x": ("float", ["n", "m", 16])}
    path = saved(tmp_path, made(nodes, inputs, ["y"], {"heads": np.array([0, 0, 2, 4])}))
    as_onnxruntime(path, {"n": 2, "m": 3}, {"n": 1, "m": 1})
    report = check(load_source(str(path)), dynamic={})
    assert {dim.name: dim.span() for dim in report.dims} == {"n": "1..", "m": "1.."}
    assert not report.contract.guards


def test_sizes_below_zero_are_divided_towards_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Shape", ["z"], ["m"]),
        helper.make_node("Sub", ["n", "m"], ["more"]),
        helper.make_node("Div", ["more", "three"], ["third"]),
        helper.make_node("Cast", ["third"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "number"], ["y"]),
    ]
    inputs: dict[str, Any] = {"x": ("float", ["n"]), "z": ("float", ["m"])}
    path = saved(tmp_path, made(nodes, inputs, ["y"], {"three": np.array([3])}))
    opened = as_onnxruntime(path, {"n": 2, "m": 7})
    dims = ({0: torch.export.Dim("n", min=2)}, {0: torch.export.Dim("m", min=2)})
    example = tuple(leaves_at(opened, {"n": 9, "m": 4}))
    traced = torch.export.export(opened.module, example, dynamic_shapes=dims, strict=False)
    for n, m in ((2, 3), (2, 4), (3, 7), (9, 2), (8, 4), (5, 5)):
        given = leaves_at(opened, {"n": n, "m": m})
        agree(traced.module()(*given), opened.reference(given))


def test_the_example_is_drawn_within_the_ranges_that_are_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path, add_one(["n", "m"]))
    for asked, sizes in (
        ({"n": (4, 9), "m": (32, 96, 32)}, [4, 32]),
        ({"n": (1, 1), "m": (2, 3)}, [1, 3]),
        ({"n": None, "m": (3, None, 2)}, [2, 3]),
    ):
        dynamic = dynamic_from_python(asked)
        source = load_source(str(path), dynamic=dynamic)
        assert list(source.args[0].shape) == sizes
        check(source, dynamic=dynamic)


def test_a_shape_from_data_is_refused_at_its_node(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="/view")
    path = saved(tmp_path, made([node], {"x": ("float", ["n"]), "shape": ("int64", [2])}, ["y"]))
    message = refused(path)
    assert "error[TC130] Reshape is not read with a shape computed from data" in message
    assert "net.onnx:2   y = Reshape(x, shape)  # /view" in message


def branches(condition: str) -> onnx.ModelProto:
    def arm(operator: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{operator}_y", TensorProto.FLOAT, ["n"])
        node = helper.make_node(operator, ["x"], [f"{operator}_y"])
        return helper.make_graph([node], operator, [], [out])

    arms = {"then_branch": arm("Neg"), "else_branch": arm("Exp")}
    nodes = [
        helper.make_node("Size", ["x"], ["size"]),
        helper.make_node("Greater", ["size", "limit"], ["long"]),
        helper.make_node("If", [condition], ["z"], name="/if", **arms),
        helper.make_node("Add", ["z", "x"], ["y"]),
    ]
    inputs: dict[str, Any] = {"x": ("float", ["n"]), "flag": ("bool", [])}
    return made(nodes, inputs, ["y"], {"limit": np.int64(5), "always": np.bool_(True)})


def test_a_branch_on_sizes_is_a_branch_of_the_model(tmp_path: Path) -> None:
    path = saved(tmp_path, branches("long"))
    as_onnxruntime(path, {"n": 3}, {"n": 9})
    as_onnxruntime(saved(tmp_path, branches("always"), "always.onnx"), {"n": 3})
    report = check(load_source(str(path), inputs=["x=float32[3]"]), dynamic={})
    assert [dim.span() for dim in report.dims] == ["1..5"]


def test_a_branch_on_data_is_refused(tmp_path: Path) -> None:
    message = refused(saved(tmp_path, branches("flag")))
    assert "TC130" in message and "If is not read with a condition computed from data" in message


# --- what is not read -----------------------------------------------------------------------------


def test_all_operators_that_are_not_read_are_named_with_their_nodes(tmp_path: Path) -> None:
    model = add_one()
    model.graph.node[0].output[0] = "z"
    extra = [
        helper.make_node("Bernoulli", ["z"], ["d"], name="/draw"),
        helper.make_node("Bernoulli", ["d"], ["e"], name="/again"),
        helper.make_node("FusedThing", ["e"], ["f"], domain="com.microsoft", name="/fused"),
        helper.make_node("LpPool", ["f"], ["y"], name="/pool", kernel_shape=[2]),
    ]
    model.graph.node.extend(extra)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    message = refused(saved(tmp_path, model))
    assert (
        "error[TC130] Bernoulli is not read" in message and "2 nodes, this is the first" in message
    )
    assert "net.onnx:3   d = Bernoulli  # /draw" in message
    assert "com.microsoft.FusedThing is not read" in message
    assert "LpPool is not read" in message


def test_what_nothing_comes_of_is_not_looked_at(tmp_path: Path) -> None:
    model = add_one()
    model.graph.node.append(helper.make_node("Bernoulli", ["x"], ["unused"]))
    as_onnxruntime(saved(tmp_path, model), {"n": 2})


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"mode": "linear", "antialias": 1}, "Resize is not read with antialias=1"),
        ({"mode": "linear", "keep_aspect_ratio_policy": "not_larger"}, "policy=not_larger"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}, "is not read"),
    ],
)
def test_attributes_that_change_the_meaning_are_refused(
    tmp_path: Path, attributes: Any, said: str
) -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], **attributes)
    scales = {"s": np.array([1, 1, 2, 2], np.float32)}
    assert said in refused(
        saved(tmp_path, made([node], {"x": ("float", [1, 1, 4, 4])}, ["y"], scales))
    )


@pytest.mark.parametrize(
    ("operator", "constants", "attributes", "said"),
    [
        ("Add", (np.arange(3), np.arange(2)), {}, "Add of constants has no value"),
        ("Reshape", (np.arange(3), np.array([2, 2])), {}, "[2, 2] does not hold 3 elements"),
        ("Gather", (np.arange(3), np.array([7])), {}, "Gather of constants has no value"),
        ("Cast", (np.float32("nan"),), {"to": 7}, "cannot convert float NaN to integer"),
        ("Div", (np.array([3]), np.array([0])), {}, "ZeroDivisionError"),
    ],
)
def test_constants_that_do_not_fit_are_refused_at_their_node(
    tmp_path: Path, operator: str, constants: tuple[Any, ...], attributes: Any, said: str
) -> None:
    given = {f"c{at}": value for at, value in enumerate(constants)}
    nodes = [
        helper.make_node(operator, list(given), ["k"], name="/const", **attributes),
        helper.make_node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    message = refused(saved(tmp_path, made(nodes, {"x": ("float", ["n", 1, 1])}, ["y"], given)))
    assert "TC130" in message and said in message
    assert f"net.onnx:2   k = {operator}  # /const" in message


def test_branches_with_other_outputs_than_their_if_are_refused(tmp_path: Path) -> None:
    model = branches("always")
    arm = next(each for each in model.graph.node if each.op_type == "If").attribute[0].g
    arm.output.append(arm.output[0])
    message = refused(saved(tmp_path, model))
    assert "If has 1 outputs, and its branches have" in message and "# /if" in message


@pytest.mark.parametrize(
    ("node", "inputs", "said"),
    [
        (
            helper.make_node("Col2Im", ["x", "i", "i"], ["y"]),
            {"x": ("float", ["n", 12, 12]), "i": ("int64", [2])},
            "Col2Im is not read with an image's shape computed from data",
        ),
        (
            helper.make_node("GridSample", ["x", "g"], ["y"], mode="round"),
            {"x": ("float", ["n", 1, 4, 4]), "g": ("float", ["n", 2, 2, 2])},
            "GridSample is not read with mode round",
        ),
        (
            helper.make_node("LayerNormalization", ["x", "s"], ["y", "m"], stash_type=99),
            {"x": ("float", ["n", 4]), "s": ("float", [4])},
            "LayerNormalization is not read with stash_type number 99",
        ),
    ],
)
def test_inputs_and_attributes_that_are_not_read_are_named(
    tmp_path: Path, node: Any, inputs: Any, said: str
) -> None:
    assert said in refused(saved(tmp_path, made([node], inputs, list(node.output), opset=20)))


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        ("com.microsoft", "the file as it was before ONNX Runtime optimized"),
        ("com.microsoft.nchwc", "it is ONNX Runtime's own"),
        ("ai.onnx.ml", "operators for classical machine learning"),
        ("my.own", "my.own is no domain of ONNX"),
    ],
)
def test_operators_of_other_domains_are_refused_by_name(
    tmp_path: Path, domain: str, said: str
) -> None:
    model = add_one()
    model.graph.node.append(helper.make_node("Scaler", ["y"], ["z"], domain=domain))
    model.graph.output[0].name = "z"
    model.opset_import.append(helper.make_opsetid(domain, 3))
    message = refused(saved(tmp_path, model))
    assert f"{domain}.Scaler is not read" in message and said in message


def test_a_file_of_another_domain_alone_is_refused_by_its_operator(tmp_path: Path) -> None:
    model = add_one()
    model.graph.node[0].CopyFrom(helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml"))
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    assert "ai.onnx.ml.Scaler is not read" in refused(saved(tmp_path, model))


@pytest.mark.parametrize("opset", [11, 12, 24])
def test_other_opsets_are_refused(tmp_path: Path, opset: int) -> None:
    model = add_one()
    model.opset_import[0].version = opset
    message = refused(saved(tmp_path, model))
    assert f"opset {opset} is not read, 13 to 23 are" in message and "convert_version" in message


def test_types_that_are_not_read_are_named(tmp_path: Path) -> None:
    model = add_one()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT16
    assert "is of type uint16, which is not read" in refused(saved(tmp_path, model))
    model = add_one()
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    model.graph.input[0].CopyFrom(sequence)
    assert "is of sequence, not a tensor" in refused(saved(tmp_path, model))


def test_functions_are_inlined(tmp_path: Path) -> None:
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    twice = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    node = helper.make_node("Twice", ["x"], ["y"], domain="own")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    ids = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=ids, functions=[twice], ir_version=8)
    as_onnxruntime(saved(tmp_path, model), {"n": 3})


# --- broken and hostile files ---------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"something", os.urandom(300), b"\x08\x08\x12"])
def test_what_is_no_onnx_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    assert "TC131" in refused(path)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_a_file_that_ends_early_is_refused(tmp_path: Path, part: float) -> None:
    path = saved(tmp_path, exporters_view())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    assert "TC131" in refused(path)


def test_a_cycle_is_refused_with_its_node(tmp_path: Path) -> None:
    model = add_one()
    model.graph.node[0].input[0] = "z"
    model.graph.node.append(helper.make_node("Neg", ["y"], ["z"], name="/back"))
    message = refused(saved(tmp_path, model))
    assert "TC131" in message and "'z'" in message and "name: /add" in message


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    model = add_one()
    model.graph.node.append(helper.make_node("Neg", ["x"], ["y"], name="/again"))
    message = refused(saved(tmp_path, model))
    assert "TC131" in message and "'y'" in message


def test_an_attribute_that_an_operator_has_not_is_told_with_its_node(tmp_path: Path) -> None:
    model = add_one()
    model.graph.node[0].attribute.append(helper.make_attribute("speed", 3))
    message = refused(saved(tmp_path, model))
    assert "TC131" in message and "speed" in message and "Name: /add OpType: Add" in message


def test_an_output_without_a_shape_is_named_with_what_to_do(tmp_path: Path) -> None:
    model = add_one()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    message = refused(saved(tmp_path, model))
    assert "TC131" in message and "its output y has no shape" in message
    assert "infer_shapes" in message


def with_external(folder: Path) -> Path:
    weight = np.arange(4096, dtype=np.float32).reshape(4, 1024)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = made([node], {"x": ("float", ["n", 4])}, ["y"], {"w": weight})
    path = folder / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_external_data_is_read(tmp_path: Path) -> None:
    path = with_external(tmp_path)
    first = as_onnxruntime(path, {"n": 3})
    (tmp_path / "w.bin").write_bytes(bytes(4096 * 4))
    assert open_onnx(path).sha256 != first.sha256, "the digest is that of both files"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"location": "../w.bin"}, "not below the model's folder"),
        ({"location": "a/../../w.bin"}, "not below the model's folder"),
        ({"location": "/etc/hostname"}, "not below the model's folder"),
        ({"location": ""}, "not below the model's folder"),
        ({"location": "nul\0l"}, "not below the model's folder"),
        ({"location": "none.bin"}, "No such file"),
        ({"location": "link.bin"}, "no plain file"),
        ({"location": "folder"}, "no plain file"),
        ({"location": "pipe"}, "no plain file"),
        ({"location": "w.bin", "length": "12"}, "has 12 bytes where its shape needs 16384"),
        ({"location": "w.bin", "offset": "8"}, "which has 16384 bytes"),
        ({"location": "w.bin", "offset": "-8"}, "has the offset '-8'"),
        ({"location": "w.bin", "length": "9" * 30}, "has the length"),
    ],
)
def test_external_data_from_elsewhere_is_refused(
    tmp_path: Path, entries: dict[str, str], said: str
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = with_external(folder)
    (tmp_path / "w.bin").write_bytes(bytes(4096 * 4))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    message = refused(path)
    assert "TC131" in message and said in message


def test_more_or_less_data_than_the_shape_says_is_refused(tmp_path: Path) -> None:
    for dims in ([5], [2**40], [-1]):
        model = add_one()
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)
        assert "TC131" in refused(saved(tmp_path, model))


def test_names_are_not_run_as_python(tmp_path: Path) -> None:
    name = "x); import os; os.abort(); (x"
    node = helper.make_node("Add", [name, name], ["y"], name="\nimport os; os.abort()")
    model = made([node], {name: ("float", ["n"])}, ["y"])
    opened = open_onnx(saved(tmp_path, model))
    assert torch.equal(opened.module(torch.ones(2)), torch.full((2,), 2.0))
