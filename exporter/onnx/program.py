"""An ONNX graph → a torch module with one line of Python for each node.

The lines stand in the name of the file: a message about node 12 points at ``model.onnx:13`` and quotes
``scores = MatMul(query, key)  # /attention/MatMul``. What is constant is computed here, once, so that
axes and shapes are numbers when the module is traced; float weights stay as they are, by their names.
"""

from __future__ import annotations

import keyword
import linecache
import math
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...artifacts.errors import Diagnostic, ExportError, Location
from ..breaks import eager_failure
from ..userfile import shown_path
from . import ops  # noqa: F401, fills the registry
from .dtypes import DTYPES
from .graph import Graph, Node
from .numbers import Numbers, as_tensor, numbers_of
from .registry import Operator, Unreadable, find

_MAX_FOLDED = 1 << 16  # elements of a constant that is computed here
_FEW_FLOATS = 16  # elements of what may be a scale; more are weights
_SCALES = ("Resize",)  # whose float vectors are numbers, not weights


class OnnxModule(torch.nn.Module):
    """The base of what `module_of` makes; ``listing`` is its forward as text.

    It is traced by running it (`trace.RUN_TO_TRACE`): sizes are then objects of torch's that can be
    told from the numbers of the graph.
    """

    listing: str = ""
    run_to_trace = True


@dataclass(frozen=True)
class Translated:
    """``parameters``: the name of each input in ``forward``; ``outputs``: their names in the file."""

    module: OnnxModule
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]


def module_of(graph: Graph, path: Path, name: str) -> Translated:
    """The module that computes a graph: of its inputs, in order, the one output, or a dict of several.

    Args:
        path: the file, in whose name the lines are quoted.

    Raises:
        ExportError: TC130, operators, or uses of them, that are not read: all of them.
    """
    writer = _Writer(graph, str(path.resolve()))
    writer.write()
    code = compile("\n".join(writer.lines), writer.file, "exec", dont_inherit=True)
    namespace: dict[str, Any] = dict(writer.globals)
    exec(code, namespace)
    text = "\n".join(writer.lines) + "\n"
    linecache.cache[writer.file] = (len(text), None, text.splitlines(True), writer.file)
    kind = type(name, (OnnxModule,), {"forward": namespace["forward"], "listing": text})
    module = kind()
    for weight, tensor in writer.weights.items():
        _attach(module, weight, tensor)
    module.eval()
    return Translated(module, tuple(writer.parameters), graph.outputs)


def unreadable_at(error: BaseException, path: Path) -> ExportError:
    """The refusal for an `Unreadable` that a run of the module came to, at its node."""
    assert isinstance(error, Unreadable)
    file = str(path.resolve())
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    line = frames[-1].lineno if frames else None
    text = linecache.getline(file, line).strip() if line else ""
    called = re.search(r"= (\w+)\(", text)
    operator = called[1] if called else "If"  # whose line is no assignment
    where = Location(shown_path(path), line, text) if line else None
    tries = (error.instead,) if error.instead else ()
    return ExportError(Diagnostic("TC130", f"{operator} {error.reason}", where, tries=tries))


def _attach(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        child = module._modules[part]
        assert child is not None
        module = child
    if tensor.is_floating_point() or tensor.is_complex():
        module.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=False))
    else:
        module.register_buffer(last, tensor)


@dataclass
class _Writer:
    """Writes ``forward``, line by line, as it follows the nodes.

    ``variables``: the Python name of each value; ``constants``: the values that are known;
    ``weights``: what the module will hold, by name.
    """

    graph: Graph
    file: str
    lines: list[str] = field(default_factory=list)
    globals: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    constants: dict[str, torch.Tensor | Numbers] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    refused: dict[str, Diagnostic] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.globals = {"Numbers": Numbers, "as_tensor": as_tensor, "truth": _truth}
        self.globals |= {"inf": math.inf, "nan": math.nan}
        self.globals |= {_named(dtype): dtype for dtype in DTYPES.values()}
        self.taken = {"self", "forward", *self.globals, *dir(OnnxModule()), *_operators(self.graph)}

    def write(self) -> None:
        graph = self.graph
        for each in graph.inputs:
            self.parameters.append(self._new(each.name))
        self.lines.append(f"def forward({', '.join(['self', *self.parameters])}):")
        self._body(graph, 1, set(graph.outputs))
        if self.refused:
            raise ExportError(
                _counted(each, self.counts[key]) for key, each in self.refused.items()
            )
        results = [self._result(name) for name in graph.outputs]
        if len(results) == 1:
            self._line(1, f"return {results[0]}")
        else:
            pairs = zip(graph.outputs, results, strict=True)
            self._line(1, f"return {{{', '.join(f'{name!r}: {value}' for name, value in pairs)}}}")

    def _body(self, graph: Graph, depth: int, wanted: set[str]) -> None:
        for name, tensor in graph.constants.items():
            self.constants[name] = tensor
        live = _live(graph, wanted)
        for node in graph.nodes:
            if id(node) in live:
                self._node(node, depth)

    def _node(self, node: Node, depth: int) -> None:
        try:
            if node.operator == "If" and not node.domain:
                self._branch(node, depth)
                return
            operator = _operator(node, self.graph.opset)
            folded = self._folded(node, operator)
        except Unreadable as error:
            self._refuse(node, error, depth)
            return
        if folded is not None:
            for name, value in zip(node.outputs, folded, strict=True):
                self.constants[name] = value
            return
        self.globals[node.operator] = operator.function
        call = f"{node.operator}({', '.join(self._arguments(node, operator))})"
        names = [self._new(name) if name else "_" for name in node.outputs]
        targets = ", ".join(names) + ("," if operator.several and len(names) == 1 else "")
        self._line(depth, f"{targets} = {call}  # {_comment(str(node))}")

    def _refuse(self, node: Node, error: Unreadable, depth: int) -> None:
        self._line(depth, f"# {_comment(f'{node.operator} {node}')}")
        shown = f"{node.domain}.{node.operator}" if node.domain else node.operator
        message = f"{shown} {error.reason}"
        text = f"{', '.join(filter(None, node.outputs))} = {node.operator}"
        where = Location(shown_path(self.file), len(self.lines), _comment(f"{text}  # {node}"))
        tries = (error.instead,) if error.instead else ()
        self.refused.setdefault(message, Diagnostic("TC130", message, where, tries=tries))
        self.counts[message] = self.counts.get(message, 0) + 1
        for name in filter(None, node.outputs):
            self._new(name)

    # --- constants --------------------------------------------------------------------------------

    def _folded(self, node: Node, operator: Operator) -> tuple[Any, ...] | None:
        """What a node of constants gives; None where it is left to run, as one of weights is."""
        if node.operator == "Constant":
            return (operator.function(**node.attributes),)
        values = []
        for name in node.inputs:
            if name and name not in self.constants:
                return None
            value = self.constants[name] if name else None
            if isinstance(value, torch.Tensor):
                limit = _FEW_FLOATS if value.is_floating_point() else _MAX_FOLDED
                if value.numel() > limit:
                    return None
                value = self._numbers(value, node.operator) or value
            values.append(value)
        attributes: dict[str, Any] = dict(node.attributes)
        if operator.several:
            attributes["outputs"] = len(node.outputs)
        try:
            with torch.no_grad():
                found = operator.function(*values, **attributes)
        except Unreadable:
            raise
        except Exception as error:  # whatever torch says of constants that do not fit
            raise Unreadable(f"of constants has no value: {eager_failure(error)[0]}") from error
        results = found if operator.several else (found,)
        large = [each for each in results if _elements(each) > _MAX_FOLDED]
        return None if large else results

    @staticmethod
    def _numbers(tensor: torch.Tensor, operator: str) -> Numbers | None:
        """A constant as numbers, unless it may be a weight."""
        is_float = tensor.is_floating_point()
        if is_float and tensor.dim() and operator not in _SCALES:
            return None
        return numbers_of(tensor)

    # --- text -------------------------------------------------------------------------------------

    def _arguments(self, node: Node, operator: Operator) -> Iterator[str]:
        for name in node.inputs:
            yield self._value(name, node.operator) if name else "None"
        for name, value in sorted(node.attributes.items()):
            yield f"{name}={self._attribute(node, name, value)}"
        if operator.several:
            yield f"outputs={len(node.outputs)}"

    def _attribute(self, node: Node, name: str, value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        numbers = numbers_of(value)
        return _written(numbers) if numbers else self._weight(f"{node}.{name}", value)

    def _value(self, name: str, operator: str = "") -> str:
        if name in self.variables:
            return self.variables[name]
        value = self.constants[name]
        if isinstance(value, torch.Tensor):
            numbers = self._numbers(value, operator) if operator else None
            if numbers is None:
                return self._weight(name, value)
            value = numbers
        return _written(value)

    def _result(self, name: str) -> str:
        """An output, which is a tensor whatever it was computed as."""
        return f"as_tensor({self._value(name)})"

    def _weight(self, name: str, tensor: torch.Tensor) -> str:
        """The expression for a tensor that the module holds, under a name like the file's."""
        held = _held_name(name)
        number = 2
        while not self._free(held, tensor):
            held, number = f"{_held_name(name)}_{number}", number + 1
        self.weights[held] = tensor
        expression = "self"
        for part in held.split("."):
            plain = part.isidentifier() and not keyword.iskeyword(part)
            expression = f"{expression}.{part}" if plain else f"getattr({expression}, {part!r})"
        return expression

    def _free(self, held: str, tensor: torch.Tensor) -> bool:
        if held in self.weights:
            return self.weights[held] is tensor
        parts = held.split(".")
        above = {".".join(parts[:at]) for at in range(1, len(parts))}
        below = any(each.startswith(f"{held}.") for each in self.weights)
        return not below and not above & self.weights.keys()

    def _new(self, name: str) -> str:
        """A Python name for a value that a line gives."""
        base = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"
        base = f"v{base}" if base[0].isdigit() else base
        base = f"{base}_" if keyword.iskeyword(base) else base
        found, number = base, 2
        while found in self.taken:
            found, number = f"{base}_{number}", number + 1
        self.taken.add(found)
        self.variables[name] = found
        return found

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # --- branches ---------------------------------------------------------------------------------

    def _branch(self, node: Node, depth: int) -> None:
        """``If`` on a constant is one of its branches; on sizes, a branch of the model's."""
        condition = self.constants.get(node.inputs[0])
        given = [node.attributes.get(name) for name in ("then_branch", "else_branch")]
        arms = [each for each in given if isinstance(each, Graph)]
        if len(arms) != 2:
            raise Unreadable("has not both of its branches")
        counts = [len(each.outputs) for each in arms]
        if counts != [len(node.outputs)] * 2:
            raise Unreadable(
                f"has {len(node.outputs)} outputs, and its branches have {counts[0]} and {counts[1]}"
            )
        if condition is not None:
            chosen = condition.values[0] if isinstance(condition, Numbers) else condition.item()
            arm = arms[0 if chosen else 1]
            self._body(arm, depth, set(arm.outputs))
            for name, result in zip(node.outputs, arm.outputs, strict=True):
                self._same(name, result)
            return
        names = {name: self._new(name) for name in node.outputs if name}
        asked = f"if truth({self._value(node.inputs[0])}):  # {_comment(f'If {node}')}"
        self._line(depth, asked)
        for number, arm in enumerate(arms):
            if number:
                self._line(depth, "else:")
            before = dict(self.variables), dict(self.constants)
            self._body(arm, depth + 1, set(arm.outputs))
            for name, result in zip(node.outputs, arm.outputs, strict=True):
                if name:
                    self._line(depth + 1, f"{names[name]} = {self._value(result, 'If')}")
            self.variables, self.constants = before

    def _same(self, name: str, given: str) -> None:
        if given in self.variables:
            self.variables[name] = self.variables[given]
        else:
            self.constants[name] = self.constants[given]


def _truth(condition: Any) -> Any:
    """What an ``If`` asks of sizes; of data it is not answered."""
    if isinstance(condition, Numbers) and len(condition.values) == 1:
        return condition.values[0]
    raise Unreadable(
        "is not read with a condition computed from data",
        "Where, which chooses between values",
    )


def _operator(node: Node, opset: int) -> Operator:
    """The operator of a node, whose inputs, attributes and outputs are as it takes them."""
    if node.domain:
        raise Unreadable(*_foreign(node.domain))
    operator = find(node.operator, opset)
    count = len(node.inputs)
    if count < operator.least or (operator.most is not None and count > operator.most):
        raise Unreadable(f"is not read with {count} inputs")
    for name, value in node.attributes.items():
        if name not in operator.attributes:
            raise Unreadable(f"is not read with the attribute {name}")
        if isinstance(value, Graph):
            raise Unreadable(f"is not read with a graph as {name}")
    if not operator.several and len(node.outputs) != 1:
        raise Unreadable(f"is not read with {len(node.outputs)} outputs", "its first output alone")
    return operator


def _foreign(domain: str) -> tuple[str, str]:
    """Why an operator of another domain is not read, and what is."""
    if domain.split(".")[:2] == ["com", "microsoft"]:
        return (
            "is not read: it is ONNX Runtime's own, for its kernels",
            "the file as it was before ONNX Runtime optimized or quantized it (quantize in QDQ "
            "format); kernels are fused by the export",
        )
    if domain == "ai.onnx.ml":
        return (
            "is not read: it is of ONNX's operators for classical machine learning",
            "the same model in PyTorch, of matrix products and comparisons",
        )
    return (
        f"is not read: {domain} is no domain of ONNX",
        "its definition as a function in the file, which is inlined",
    )


def _elements(value: Any) -> int:
    return len(value.values) if isinstance(value, Numbers) else int(value.numel())


def _live(graph: Graph, wanted: set[str]) -> set[int]:
    """The nodes, by identity, that something is computed from."""
    wanted = set(wanted)
    live = set()
    for node in reversed(graph.nodes):
        if wanted & set(filter(None, node.outputs)):
            live.add(id(node))
            wanted.update(_uses(node))
    return live


def _uses(node: Node) -> Iterator[str]:
    yield from filter(None, node.inputs)
    for value in node.attributes.values():
        if isinstance(value, Graph):
            yield from value.outputs
            for inner in value.nodes:
                yield from _uses(inner)


def _operators(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        yield node.operator
        for value in node.attributes.values():
            if isinstance(value, Graph):
                yield from _operators(value)


def _counted(diagnostic: Diagnostic, count: int) -> Diagnostic:
    if count == 1:
        return diagnostic
    notes = (f"{count} nodes, this is the first",)
    return Diagnostic("TC130", diagnostic.message, diagnostic.location, notes, diagnostic.tries)


def _held_name(name: str) -> str:
    parts = [re.sub(r"\W+", "_", part, flags=re.ASCII) for part in name.split(".")]
    reserved = set(dir(OnnxModule()))
    return ".".join(f"{part}_" if part in reserved or not part else part for part in parts)


def _written(numbers: Numbers) -> str:
    return f"Numbers({numbers.values!r}, {numbers.shape!r}, {_named(numbers.dtype)})"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _comment(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
