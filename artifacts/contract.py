"""The contract of a bundle: every assumption of the trace, the compiler and the target, as data.

The exporter derives it once; the runtime believes nothing else. Guards are expressions over *dims*,
which carry the user's names and say where each value is read from: an axis of an input, or an
integer input itself. Checking a call is: match the arguments to the structure, compare dtypes, ranks
and fixed values, read the dims, check axes, ranges and guards.
"""

from __future__ import annotations

import keyword
import math
from typing import Any, Literal, TypeAlias

import msgspec

from .errors import Location
from .expr import Expr, ExprError, from_data, is_logic

Plain: TypeAlias = "None | bool | int | float | str"
PLAIN_TYPES: tuple[type, ...] = (type(None), bool, int, float, str)

DTYPES = frozenset(
    {
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    }
)

MAX_RANK = 32
MAX_INPUTS = 4096
MAX_GUARDS = 65536
MAX_SIZE = 2**62
MAX_NAME = 1024


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Origin(_Data, frozen=True):
    """Where an assumption comes from: a reason in words and, where there is one, the user's line."""

    reason: str
    location: Location | None = None

    def __str__(self) -> str:
        if self.location is None:
            return self.reason
        text = self.location.text or self.reason
        return f"{text}  ({self.location})"


# --- the shape of arguments and results -----------------------------------------------------------


class Leaf(_Data, frozen=True, tag="leaf", tag_field="node"):
    """One input or output, by its index in the flat list."""

    index: int


class TupleNode(_Data, frozen=True, tag="tuple", tag_field="node"):
    items: tuple[Node, ...]


class ListNode(_Data, frozen=True, tag="list", tag_field="node"):
    items: tuple[Node, ...]


class DictNode(_Data, frozen=True, tag="dict", tag_field="node"):
    """A dict with plain keys, in the order of the example."""

    keys: tuple[str | int, ...]
    items: tuple[Node, ...]


class NamedTupleNode(_Data, frozen=True, tag="namedtuple", tag_field="node"):
    name: str
    fields: tuple[str, ...]
    items: tuple[Node, ...]


class AbsentNode(_Data, frozen=True, tag="absent", tag_field="node"):
    """A parameter that was left at a default that is not plain data: it must be left out."""


# A union, not a string: on Python 3.10 msgspec cannot follow a name within a name.
Node: TypeAlias = Leaf | TupleNode | ListNode | DictNode | NamedTupleNode | AbsentNode


class Parameter(_Data, frozen=True):
    """One parameter of the model's ``forward``. ``optional``: the call may leave it out, since
    every leaf of it is fixed at the default."""

    name: str
    kind: Literal["positional", "either", "keyword"]
    structure: Leaf | TupleNode | ListNode | DictNode | NamedTupleNode | AbsentNode
    optional: bool = False


class Fixed(_Data, frozen=True, tag="fixed", tag_field="kind"):
    """A value that was fixed at export and is compared by type and by value.

    ``text`` is ``repr`` for numbers (so that inf, nan and -0.0 survive JSON) and the text itself
    for a str.
    """

    path: str
    type: Literal["none", "bool", "int", "float", "str"]
    text: str

    @classmethod
    def of(cls, path: str, value: Plain) -> Fixed:
        if value is None:
            return cls(path, "none", "None")
        if isinstance(value, str):
            return cls(path, "str", value)
        return cls(path, type(value).__name__, repr(value))  # type: ignore[arg-type]

    @property
    def value(self) -> Plain:
        if self.type == "none":
            return None
        if self.type == "str":
            return self.text
        if self.type == "bool":
            return self.text == "True"
        return int(self.text) if self.type == "int" else float(self.text)

    def admits(self, value: Any) -> bool:
        """Whether ``value`` has the type and the value that were fixed; ``1`` is not ``True``."""
        return type(value) in PLAIN_TYPES and Fixed.of(self.path, value) == self


class TensorInput(_Data, frozen=True, tag="tensor", tag_field="kind"):
    """A tensor argument. ``shape``: an int, a dim's name or an expression for each axis.

    ``layout``: any, since what is not contiguous is copied; or contiguous alone, since the model
    asks for the layout and the trace kept the answer.
    """

    path: str
    dtype: str
    shape: tuple[Any, ...]
    layout: Literal["any", "contiguous"] = "any"


class TensorOutput(_Data, frozen=True, tag="tensor", tag_field="kind"):
    """A tensor result: number ``result`` of those that the compiled function returns.

    A size of None depends on the data and is known after the call only.
    """

    path: str
    dtype: str
    shape: tuple[Any, ...]
    result: int


class SizeOutput(_Data, frozen=True, tag="size", tag_field="kind"):
    """A result that is an int computed from the dims."""

    path: str
    value: Any


# --- assumptions ----------------------------------------------------------------------------------


class AxisSource(_Data, frozen=True, tag="axis", tag_field="read"):
    """The dim is read from an axis: ``(size - offset) // scale``; the axis' own check does the rest."""

    input: int
    axis: int
    scale: int = 1
    offset: int = 0


class ValueSource(_Data, frozen=True, tag="value", tag_field="read"):
    """The dim is the value of an integer input with one element."""

    input: int


class Dim(_Data, frozen=True):
    """A name for a size (or an integer) that varies from call to call, with its range.

    Allowed are ``lo``, ``lo + step``, … up to ``hi`` (None: without end).
    """

    name: str
    source: AxisSource | ValueSource
    lo: int
    hi: int | None
    lo_from: Origin
    hi_from: Origin
    step: int = 1
    step_from: Origin | None = None

    @property
    def open_below(self) -> bool:
        """Whether any number will do, as far as it is small enough: that of an integer input."""
        return isinstance(self.source, ValueSource) and self.lo <= -MAX_SIZE

    def span(self) -> str:
        """The range as it is typed: ``1..512``, ``4..16:4``; an end that is not there is left out."""
        text = f"{'' if self.open_below else self.lo}..{'' if self.hi is None else self.hi}"
        return f"{text}:{self.step}" if self.step != 1 else text


class Guard(_Data, frozen=True):
    """Must hold for every call. ``expr`` is a comparison or logic over dims."""

    expr: Any
    origin: Origin


class Part(_Data, frozen=True):
    """Along ``axis`` of an input, the positions from ``start`` to ``stop``, which is not included."""

    axis: int
    start: Any
    stop: Any


class IndexGuard(_Data, frozen=True):
    """All values of an integer input must lie in ``lo..hi``, both included.

    With ``parts``, only the values in this part of the input count: what is along the axes named.
    """

    input: int
    lo: Any
    hi: Any
    origin: Origin
    parts: tuple[Part, ...] = ()


class ComputedGuard(_Data, frozen=True):
    """What only the compiled code can look at: indices that the model computes, or an assertion on
    values. It is known to the compiled code by its place in the contract.

    For indices, ``size`` is how many there are to choose from (None: it depends on data), and
    ``wraps`` says that -size..-1 count from the end. For an assertion, ``what`` is its message.
    """

    what: str
    size: Any
    wraps: bool
    origin: Origin
    assertion: bool = False


class Contract(_Data, frozen=True):
    """All that a call is held against. See the module's text for the order of the checks."""

    dims: tuple[Dim, ...]
    parameters: tuple[Parameter, ...]
    inputs: tuple[TensorInput | Fixed, ...]
    guards: tuple[Guard, ...]
    index_guards: tuple[IndexGuard, ...]
    outputs: tuple[TensorOutput | SizeOutput | Fixed, ...]
    result: Leaf | TupleNode | ListNode | DictNode | NamedTupleNode
    computed_guards: tuple[ComputedGuard, ...] = ()


# --- reading ----------------------------------------------------------------------------------------


class ContractError(ValueError):
    """Data that has the form of a contract but does not make sense as one."""


def leaves(node: Node) -> list[int]:
    """The indices of the leaves below a node, left to right."""
    if isinstance(node, Leaf):
        return [node.index]
    if isinstance(node, AbsentNode):
        return []
    return [index for item in node.items for index in leaves(item)]


def checked(contract: Contract) -> Contract:
    """The same contract with every expression validated and turned into tuples.

    Raises:
        ContractError: it names something that is not there, or is out of bounds.
    """
    if len(contract.inputs) > MAX_INPUTS or len(contract.outputs) > MAX_INPUTS:
        raise ContractError("too many inputs or outputs")
    guards = (*contract.guards, *contract.index_guards, *contract.computed_guards)
    if len(guards) > MAX_GUARDS:
        raise ContractError("too many guards")
    names = [dim.name for dim in contract.dims]
    known = frozenset(names)
    if len(known) != len(names):
        raise ContractError("two dims with one name")

    def expr(data: Any) -> Expr:
        try:
            built = from_data(data, known)
        except ExprError as error:
            raise ContractError(str(error)) from None
        if is_logic(built):
            raise ContractError("a condition where a number is needed")
        return built

    def condition(data: Any) -> Expr:
        try:
            built = from_data(data, known)
        except ExprError as error:
            raise ContractError(str(error)) from None
        if not is_logic(built):
            raise ContractError("a guard that is not a condition")
        return built

    def shape(data: tuple[Any, ...]) -> tuple[Expr, ...]:
        if len(data) > MAX_RANK:
            raise ContractError("rank too large")
        return tuple(expr(size) for size in data)

    def tensor_at(index: int) -> TensorInput:
        if not 0 <= index < len(contract.inputs):
            raise ContractError(f"no input {index}")
        found = contract.inputs[index]
        if not isinstance(found, TensorInput):
            raise ContractError(f"input {index} is not a tensor")
        return found

    def integers_at(index: int) -> TensorInput:
        found = tensor_at(index)
        if not found.dtype.startswith(("int", "uint")):
            raise ContractError(f"input {index} does not hold integers")
        return found

    shown = [item.path for item in (*contract.inputs, *contract.outputs)]
    for name in (*names, *shown, *(parameter.name for parameter in contract.parameters)):
        check_name(name)
    for dim in contract.dims:
        source = tensor_at(dim.source.input)
        if isinstance(dim.source, AxisSource):
            if not 0 <= dim.source.axis < len(source.shape):
                raise ContractError(f"dim {dim.name}: no axis {dim.source.axis}")
            if dim.source.scale < 1:
                raise ContractError(f"dim {dim.name}: scale must be positive")
        else:
            integers_at(dim.source.input)
        if dim.step < 1 or abs(dim.lo) > MAX_SIZE or abs(dim.hi or 0) > MAX_SIZE:
            raise ContractError(f"dim {dim.name}: range out of bounds")
    _check_structure(
        [parameter.structure for parameter in contract.parameters], len(contract.inputs)
    )
    _check_structure([contract.result], len(contract.outputs))
    for item in (*contract.inputs, *contract.outputs):
        if isinstance(item, Fixed):
            _check_fixed(item)
        elif isinstance(item, (TensorInput, TensorOutput)) and item.dtype not in DTYPES:
            raise ContractError(f"{item.path}: unknown dtype {item.dtype!r:.40}")
    return msgspec.structs.replace(
        contract,
        inputs=tuple(
            msgspec.structs.replace(item, shape=shape(item.shape))
            if isinstance(item, TensorInput)
            else item
            for item in contract.inputs
        ),
        guards=tuple(
            msgspec.structs.replace(guard, expr=condition(guard.expr)) for guard in contract.guards
        ),
        index_guards=tuple(
            msgspec.structs.replace(
                guard,
                lo=expr(guard.lo),
                hi=expr(guard.hi),
                parts=_checked_parts(guard, integers_at(guard.input), expr),
            )
            for guard in contract.index_guards
        ),
        computed_guards=tuple(
            msgspec.structs.replace(guard, size=None if guard.size is None else expr(guard.size))
            for guard in contract.computed_guards
        ),
        outputs=tuple(_checked_output(output, expr) for output in contract.outputs),
    )


def check_name(name: str) -> None:
    """Raises ContractError for a name that could pass itself off as something else where it is
    shown: empty, too long, or with characters that are not printed."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ContractError(f"a name that cannot be shown: {name!r:.80}")


def child_path(parent: str, key: str | int) -> str:
    """The path of an entry of a dict: ``batch.ids``, ``batch[3]``, ``batch['a b']``."""
    if isinstance(key, str) and key.isidentifier():
        return f"{parent}.{key}"
    return f"{parent}[{key!r}]"


def _checked_parts(guard: IndexGuard, item: TensorInput, expr: Any) -> tuple[Part, ...]:
    axes = [part.axis for part in guard.parts]
    if len(set(axes)) != len(axes) or any(not 0 <= axis < len(item.shape) for axis in axes):
        raise ContractError(f"{item.path}: an index guard over axes that are not there")
    return tuple(Part(part.axis, expr(part.start), expr(part.stop)) for part in guard.parts)


def _checked_output(output: Any, expr: Any) -> Any:
    if isinstance(output, TensorOutput):
        if len(output.shape) > MAX_RANK:
            raise ContractError("rank too large")
        sizes = tuple(None if size is None else expr(size) for size in output.shape)
        return msgspec.structs.replace(output, shape=sizes)
    if isinstance(output, SizeOutput):
        return msgspec.structs.replace(output, value=expr(output.value))
    return output


def _check_structure(nodes: list[Any], count: int) -> None:
    found = [index for node in nodes for index in leaves(node)]
    if sorted(found) != list(range(count)):
        raise ContractError("the structure does not name every leaf exactly once")
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, (Leaf, AbsentNode)):
            continue
        if isinstance(node, DictNode) and not len(node.items) == len(node.keys) == len(
            {*node.keys}
        ):
            raise ContractError("a dict with other keys than items, or one twice")
        if isinstance(node, NamedTupleNode):
            _check_named_tuple(node)
        stack.extend(node.items)


def _check_named_tuple(node: NamedTupleNode) -> None:
    """That Python makes a class of these names, which are the user's, and of nothing else."""
    if not len(node.items) == len(node.fields) == len({*node.fields}):
        raise ContractError("a named tuple with other fields than items, or one twice")
    for name in (node.name, *node.fields):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ContractError(
                f"a named tuple with a name that Python does not allow: {name!r:.80}"
            )
    if any(name.startswith("_") for name in node.fields):
        raise ContractError(f"a named tuple with a field that is not public: {node.name}")


def _check_fixed(item: Fixed) -> None:
    try:
        value = item.value
    except ValueError:
        raise ContractError(f"{item.path}: bad fixed value") from None
    if item.type == "float" and isinstance(value, float) and math.isnan(value):
        return
    if Fixed.of(item.path, value) != item:
        raise ContractError(f"{item.path}: bad fixed value")
