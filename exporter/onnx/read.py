"""An ONNX file → its graph, or a refusal that names the node: nothing of the file is trusted."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ...artifacts.errors import Diagnostic, ExportError, UsageError
from ..userfile import shown_path
from .dtypes import DTYPES, dtype_name
from .external import BrokenTensor, Tensors
from .graph import Attribute, Graph, Input, Node
from .registry import NEWEST, OLDEST

_DOMAINS = ("", "ai.onnx")
_MAX_DEPTH = 8  # of branches within branches


def require_package(*names: str) -> None:
    """
    Raises:
        UsageError: TC011, a package that ONNX files need is not installed.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            Diagnostic(
                "TC011",
                f"ONNX files need what is not installed here: {', '.join(missing)}",
                tries=("pip install 'tcexport[onnx]', or '.[onnx]' in a checkout",),
            )
        )


def read_onnx(path: Path) -> tuple[Graph, str]:
    """The graph of a file, and the SHA-256 of all that it was read from.

    Raises:
        UsageError: TC011, no package to read it; TC131, it is broken, or its parts do not fit.
        ExportError: TC130, it holds what is not read: other opsets, types, sparse tensors.
    """
    require_package("onnx")
    import onnx
    import onnx.inliner
    from google.protobuf.message import DecodeError

    reader = _Reader(path)
    content = path.read_bytes()
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise reader.broken(f"it is not a protobuf of ONNX ({error})") from None
    reader.require_opset(model)
    graph = reader.graph(model.graph)  # external data first: the checker follows its paths
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise reader.broken(_in_one_line(error)) from None
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except RuntimeError as error:
            raise reader.broken(f"its functions: {_in_one_line(error)}") from None
        graph = reader.graph(model.graph)
    reader.require_order(graph, set())
    return graph, reader.tensors.digest(content)


def _in_one_line(error: BaseException) -> str:
    """All that onnx says: which node it is of comes last."""
    return " ".join(str(error).replace("==>", "").split())


class _Reader:
    """Reads the messages of one file."""

    def __init__(self, path: Path) -> None:
        self.shown = shown_path(path)
        self.tensors = Tensors(path.parent)
        self.opset = NEWEST

    def broken(self, reason: str, *tries: str) -> UsageError:
        checker = f"python -c \"import onnx; onnx.checker.check_model('{self.shown}')\""
        message = f"{self.shown} cannot be read: {reason}"
        return UsageError(Diagnostic("TC131", message, tries=tries or (checker,)))

    def refused(self, reason: str, *tries: str) -> ExportError:
        return ExportError(Diagnostic("TC130", f"{self.shown}: {reason}", tries=tries))

    def require_opset(self, model: Any) -> None:
        versions = [each.version for each in model.opset_import if each.domain in _DOMAINS]
        if not versions and model.opset_import:
            versions = [NEWEST]  # all of it is of other domains
        if len(set(versions)) != 1:
            raise self.broken("it does not say which opset it is of")
        self.opset = versions[0]
        if not OLDEST <= self.opset <= NEWEST:
            raise self.refused(
                f"opset {self.opset} is not read, {OLDEST} to {NEWEST} are",
                "torch.onnx.export(…, opset_version=20, dynamo=True)",
                "onnx.version_converter.convert_version(model, 20)",
            )

    def graph(self, proto: Any, depth: int = 0) -> Graph:
        if depth > _MAX_DEPTH:
            raise self.broken("its branches are nested too deep")
        if len(proto.sparse_initializer):
            raise self.refused("sparse initializers are not read", "dense ones")
        constants = {}
        for each in proto.initializer:
            if not each.name or each.name in constants:
                raise self.broken(f"two initializers are called {each.name!r}")
            constants[each.name] = self._tensor(each, f"the initializer {each.name}")
        inputs = [self._input(each) for each in proto.input if each.name not in constants]
        nodes = tuple(self._node(each, depth) for each in proto.node)
        for each in proto.output if depth == 0 else ():
            if each.type.WhichOneof("value") in (None, "tensor_type") and not (
                each.type.tensor_type.HasField("shape")
            ):
                raise self.broken(
                    f"its output {each.name} has no shape",
                    "onnx.save(onnx.shape_inference.infer_shapes(model), …)",
                )
        outputs = tuple(each.name for each in proto.output)
        return Graph(proto.name, self.opset, tuple(inputs), outputs, constants, nodes)

    def _tensor(self, proto: Any, what: str) -> torch.Tensor:
        try:
            return self.tensors.read(proto)
        except BrokenTensor as error:
            raise self.broken(f"{what} {error}") from None

    def _input(self, proto: Any) -> Input:
        kind = proto.type.WhichOneof("value")
        if kind != "tensor_type":
            what = (kind or "no type").removesuffix("_type").replace("_", " ")
            raise self.refused(f"the input {proto.name} is of {what}, not a tensor")
        tensor = proto.type.tensor_type
        if tensor.elem_type not in DTYPES:
            name = dtype_name(tensor.elem_type)
            raise self.refused(f"the input {proto.name} is of type {name}, which is not read")
        if not tensor.HasField("shape"):
            raise self.refused(
                f"the input {proto.name} has no shape, not even a number of axes",
                "onnx.tools.update_model_dims.update_inputs_outputs_dims(model, …)",
            )
        return Input(proto.name, DTYPES[tensor.elem_type], tuple(map(_dim, tensor.shape.dim)))

    def _node(self, proto: Any, depth: int) -> Node:
        shown = proto.name or next((each for each in proto.output if each), "")
        attributes = {}
        for each in proto.attribute:
            what = f"the attribute {each.name} of {proto.op_type} {shown}"
            attributes[each.name] = self._attribute(each, what, depth)
        domain = "" if proto.domain in _DOMAINS else proto.domain
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        return Node(proto.op_type, domain, proto.name, inputs, outputs, attributes)

    def _attribute(self, proto: Any, what: str, depth: int) -> Attribute:
        kinds = type(proto)
        if proto.type == kinds.FLOAT:
            return float(proto.f)
        if proto.type == kinds.INT:
            return int(proto.i)
        if proto.type == kinds.STRING:
            return self._text(proto.s, what)
        if proto.type == kinds.FLOATS:
            return [float(each) for each in proto.floats]
        if proto.type == kinds.INTS:
            return [int(each) for each in proto.ints]
        if proto.type == kinds.STRINGS:
            return [self._text(each, what) for each in proto.strings]
        if proto.type == kinds.TENSOR:
            return self._tensor(proto.t, what)
        if proto.type == kinds.GRAPH:
            return self.graph(proto.g, depth + 1)
        kind = kinds.AttributeType.Name(proto.type) if proto.type else "no type"
        raise self.refused(f"{what} is of {kind}, which is not read")

    def _text(self, value: bytes, what: str) -> str:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise self.broken(f"{what} is no text") from None

    def require_order(self, graph: Graph, outer: set[str]) -> None:
        """Every name is given once, and before it is used: so there is no cycle."""
        known = outer | set(graph.constants)
        for each in graph.inputs:
            known = self._with_new(known, [each.name], "an input")
        for node in graph.nodes:
            what = f"{node.operator} {node}"
            for name in _used(node.inputs):
                if name not in known:
                    raise self.broken(
                        f"{what} uses {name}, which nothing before it gives (a cycle, or nodes out of "
                        "order)"
                    )
            for attribute in node.attributes.values():
                if isinstance(attribute, Graph):
                    self.require_order(attribute, known)
            known = self._with_new(known, _used(node.outputs), what)
        for name in graph.outputs:
            if name not in known:
                raise self.broken(f"nothing gives its output {name}")

    def _with_new(self, known: set[str], names: Iterable[str], what: str) -> set[str]:
        for name in names:
            if name in known:
                raise self.broken(f"{what} gives {name}, which is given before")
            known.add(name)
        return known


def _used(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name)


def _dim(proto: Any) -> int | str | None:
    if proto.HasField("dim_value"):
        return int(proto.dim_value) if proto.dim_value >= 0 else None
    name = proto.dim_param.strip()
    return name or None
