"""Why torch could not make one graph of a model, as diagnostics on the user's own line."""

from __future__ import annotations

import json
import linecache
import re
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch._dynamo.exc import (
    InternalTorchDynamoError,
    ObservedException,
    TorchDynamoException,
    TorchRuntimeError,
    Unsupported,
    UserError,
)
from torch._ops import HigherOrderOperator
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..artifacts.errors import Diagnostic, Location
from ..lowering.locations import is_library, location_of_frames, shown_file, user_location
from .families import FAMILIES, Family, classify_function, tries_for
from .roles import branch_family, catches, roles

Frames = Sequence["tuple[str, int]"]

_DATA = re.compile(r"data.dependent", re.IGNORECASE)
_HINT = re.compile(r"^\s*Hint:\s*(?P<hint>.+)$", re.MULTILINE)
_EXPLANATION = re.compile(r"^\s*Explanation:\s*(?P<text>.+)$", re.MULTILINE)
_CONTEXT = re.compile(r"^\s*Developer debug context:\s*(?P<text>.+)$", re.MULTILINE)
_FUNCTION = re.compile(r"module: (?P<module>[^,]*), qualname: (?P<name>[^,]*)")
_BUILTIN = re.compile(r"builtin operator `(?P<name>\w+)`(?P<rest>.*)")
_METHOD = re.compile(r"trace method `(?P<name>\w+)` of class `(?P<owner>\w+)`")
_META = re.compile(r"unsupported operator: (?P<space>\w+)\.(?P<name>\w+)")
_SIZES = re.compile(r"Size-like symbols: [uz]\w*\d")
_READS = re.compile(r"\.(?:tolist|item)\(\)|\b(?:int|float)\(")
_RAISED = re.compile(r"raised exception (?P<what>\w+)\((?P<text>.*)\)$", re.MULTILINE)
_FAILED = re.compile(r"with fake tensors: .*: got (?P<kind>\w+)\((?P<text>.*)\)$", re.MULTILINE)
_SIDES = re.compile(r"two branches' output|cond's output stride|cond: differing branch outputs")
_SLOT = re.compile(r"^\w+$|\b(?:nb|mp|sq|tp)_\w+")
_QUOTES = "\"'"
_NO_TENSOR = re.compile(r"; target: (?:<.*(?:method|function) )?(?P<name>\w+)")
_OPAQUE = ("eval", "exec", "compile", "globals", "locals", "vars", "memoryview", "input")
# Names that are torch's alone, and hints about torch.compile at run time or about torch itself.
_INTERNAL = re.compile(r"\b(?:s|u|zuf|zf)\d+\b|L\[|flat_args|Dynamo|torch\.compile|torch\._dynamo")
_NOT_OURS = ("fullgraph", "file an issue", "report", "graph break", "allow_in_graph", "fundamental")

_TEXTS = ("str", "repr", "format")
_NUMBERS = (*_TEXTS, "int", "float", "complex", "bool")
_BY_KIND: tuple[tuple[str, str], ...] = (
    ("Data-dependent assertion", "assert"),
    ("assert with non-string", "assert"),
    ("Data-dependent branching", "branch"),
    ("sort with non-constant keys", "branch"),
    ("unsupported index(Tensor)", "number"),
    ("Dynamic slicing with Tensor", "number"),
    ("non-scalar tensor", "number"),
    ("Tensor.item()", "number"),
    ("Tensor.tolist()", "number"),
    ("nb_int_impl", "number"),
    ("nb_float_impl", "number"),
    ("repr() on tensor", "number"),
    ("ndarray", "numpy"),
    ("numpy", "numpy"),
    ("NumPy", "numpy"),
    ("tensor data attribute", "data"),
    ("Tensor.random_ op", "random_"),
    ("random.Random()", "random"),
    ("contextlib", "context"),
    ("context manager", "context"),
    ("generator", "generator"),
    ("autograd.Function", "custom"),
    ("Read uninitialized cell", "generator"),
    ("custom jvp", "custom"),
    ("custom vjp", "custom"),
    ("Operator does not support running with fake tensors", "custom"),
    ("non-PT2-compliant op", "custom"),
    ("no meta kernel", "custom"),
)


def explain_failure(error: BaseException) -> tuple[Diagnostic, bool]:
    """What a failed trace means, and whether it is the model's doing.

    Returns:
        The diagnostic, and False where torch's tracer itself broke, so that another way of tracing
        may succeed on the same model.
    """
    frames = _frames(error)
    if isinstance(error, GuardOnDataDependentSymNode) or _is_data_dependent(error):
        return explain_break("Data-dependent branching", str(error), frames), True
    if isinstance(error, Unsupported):
        return explain_break(error.gb_type or first_line(error), str(error), frames), True
    if "is mutated in the forward method" in str(error):
        return _diagnostic(FAMILIES["data"], "", frames), True
    failed = _FAILED.search(str(error)) if isinstance(error, TorchRuntimeError) else None
    if failed is not None and any(catches(*frame) for frame in frames if not is_library(frame[0])):
        found = _diagnostic(FAMILIES["caught"], "", frames)
        text = f"{failed['kind']}: {failed['text'].strip(_QUOTES)}"
        told = () if _INTERNAL.search(text) else (text,)
        return msgspec.structs.replace(found, notes=(*told, *found.notes)), True
    if _SIDES.search(str(error)):
        return _diagnostic(FAMILIES["sides"], "", frames), True
    models = isinstance(error, (UserError, TorchRuntimeError, ObservedException))
    models = models or not isinstance(error, (TorchDynamoException, InternalTorchDynamoError))
    return (
        Diagnostic(
            "TC190",
            f"torch.export failed: {first_line(error)}",
            location=location_of_frames(frames),
            notes=(f"{type(error).__module__}.{type(error).__name__}",),
        ),
        models and isinstance(error, (UserError, TorchRuntimeError)),
    )


def explain_pass(error: BaseException, program: torch.export.ExportedProgram) -> Diagnostic:
    """What it means that torch could not take a traced graph apart; the line is that of the node
    that it was at, or of the first one inside of it."""
    executing = _EXECUTING.search(str(error))
    nodes = {node.name: node for node in program.graph.nodes}
    node = nodes.get(executing["node"]) if executing else None
    if node is None:
        found = explain_failure(error)[0]
        calls = [each for each in program.graph.nodes if each.op == "call_function"]
        higher = [each for each in calls if isinstance(each.target, HigherOrderOperator)]
        if found.location is not None or not higher:
            return found
        node = higher[0]
    location = next(filter(None, map(user_location, _traces(node, program.graph_module))), None)
    if "autocast" in str(node.target):
        family = FAMILIES["autocast"]
        return Diagnostic(family.code, family.message, location, tries=family.tries)
    name = str(getattr(node.target, "_name", None) or node.target)
    return Diagnostic(
        "TC101",
        f"graph break: {name} cannot be taken apart to the ops that are lowered",
        location,
        notes=(first_line(error),),
        tries=("write it with the ops of docs/ops.md",),
    )


def _traces(node: torch.fx.Node, module: torch.nn.Module) -> Iterator[str | None]:
    yield node.meta.get("stack_trace")
    for argument in node.all_input_nodes:
        inner = getattr(module, str(argument.target), None) if argument.op == "get_attr" else None
        if isinstance(inner, torch.fx.GraphModule):
            for each in inner.graph.nodes:
                if each.op == "call_function":
                    yield from _traces(each, inner)


_EXECUTING = re.compile(r"^While executing %(?P<node>\w+) :", re.MULTILINE)


def explain_break(kind: str, message: str, frames: Frames) -> Diagnostic:
    """One graph break as a diagnostic.

    Args:
        kind: torch's short name for it (``gb_type``, https://meta-pytorch.org/compile-graph-break-site).
        message: torch's message, of which the parts about the model are kept.
        frames: (file, line), outermost first.
    """
    if is_about_data(message):
        kind = "Data-dependent branching"
    family, what = _family(kind, message, frames)
    if family is not None:
        return _diagnostic(family, what, frames)
    raised = _RAISED.search(message)
    if raised is not None:
        return Diagnostic(
            "TC101",
            f"graph break: the trace raises {raised['what']} here, and a call does not",
            location=location_of_frames(frames),
            notes=(raised["text"].strip("'\""), *_library_line(frames)),
            tries=("do it before or after the call, on its inputs or results",),
        )
    explained = _explanation(kind, message)
    shown = kind[:1].lower() + kind[1:]
    if _SLOT.search(kind) and explained:  # a name of torch's own: its reason says more
        shown, explained = explained[0].rstrip("."), ()
    return Diagnostic(
        "TC101",
        f"graph break: {shown}",
        location=location_of_frames(frames),
        notes=(*explained, *_library_line(frames)),
        tries=_hints(message) or ("do it before or after the call, on its inputs or results",),
    )


def eager_failure(error: BaseException) -> tuple[str, Location | None]:
    """The message of an exception that the model itself raised, and the user's line it came from."""
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {first_line(error)}", location_of_frames(frames)


def _diagnostic(family: Family, what: str, frames: Frames) -> Diagnostic:
    return Diagnostic(
        family.code,
        family.message.format(what=what),
        location=location_of_frames(frames),
        notes=_library_line(frames),
        tries=tries_for(family, what),
        severity=family.severity,
    )


def _family(kind: str, message: str, frames: Frames) -> tuple[Family | None, str]:
    if "marked as skipped" in kind:
        context = _CONTEXT.search(message)
        function = _FUNCTION.search(context["text"]) if context else None
        if function is not None:
            found, what = classify_function(function["module"], function["name"])
            if found == "c" and not _is_in_c(context["text"] if context else ""):
                found = "packed" if "pack" in what and "sequence" in what else "skipped"
            return FAMILIES[found], what
    builtin = _BUILTIN.search(message)
    if builtin is not None and builtin["name"] == "open":
        return FAMILIES["files"], "open()"
    if builtin is not None and builtin["name"] in _NUMBERS and "'Tensor'" in builtin["rest"]:
        return FAMILIES["number"], ""
    if builtin is not None and builtin["name"] in _TEXTS and "'int'" in builtin["rest"]:
        return FAMILIES["text"], ""
    given = _NO_TENSOR.search(message) if "returned non-Tensor" in kind else None
    if given is not None:
        family = "offset" if given["name"] == "storage_offset" else "plain"
        return FAMILIES[family], f"{given['name']}()"
    method = _METHOD.search(message)
    if method is not None and method["name"] in ("write", "writelines", "flush"):
        return FAMILIES["stream"], f"{method['name']}()"
    if method is not None and "unsupported method call" in kind.lower():
        name = "" if method["name"] == "__call__" else f".{method['name']}"
        return FAMILIES["c"], f"{method['owner']}{name}()"
    unfit = _META.search(message) if "fake tensors" in kind else None
    if unfit is not None and unfit["space"] in ("aten", "prims"):
        return FAMILIES["shapeless"], f"{unfit['space']}::{unfit['name']}"
    if builtin is not None and builtin["name"] in _OPAQUE:
        return FAMILIES["c"], f"{builtin['name']}()"
    if "Could not extract specialized integer" in message:
        return FAMILIES[_role("size", frames, message)], ""
    for part, name in _BY_KIND:
        if part in kind:
            if name == "branch":
                name = "causal" if _compares_masks(frames) else _role(name, frames, message)
            what = "a part of this line" if name in ("numpy", "random") else ""
            return FAMILIES[name], what
    return None, ""


def _role(name: str, frames: Frames, message: str) -> str:
    """The family by what the user's line does, where torch knows only that data decided."""
    found = _role_of_line(name, frames)
    own = [frame for frame in frames if not is_library(frame[0])]
    reads = bool(own) and _READS.search(_line(*own[-1])) is not None
    about_size = found in ("lookup", "number") and not reads and _SIZES.search(message)
    return "sized" if about_size else found


def _role_of_line(name: str, frames: Frames) -> str:
    if not frames:
        return name
    file, _ = frames[-1]
    inside = is_library(file)
    if inside and not Path(file).as_posix().endswith("torch/nn/modules/container.py"):
        return name
    own = [frame for frame in frames if not is_library(frame[0])]
    if not own:
        return name
    if name == "branch":
        return branch_family(*own[-1])
    found = roles(*own[-1])
    if not found & {"index", "count"} and _READS.search(_line(*own[-1])):
        return "number"
    return "lookup" if inside or ("index" in found and "count" not in found) else name


def _is_in_c(context: str) -> bool:
    return "C extension" in context or "builtin" in context


def _compares_masks(frames: Frames) -> bool:
    """Whether nn.TransformerEncoder or its decoder found out by looking whether a mask is causal."""
    files = [Path(file).as_posix() for file, _ in frames]
    through = [file.endswith("torch/nn/modules/transformer.py") for file in files]
    if not any(through):
        return False
    file, line = frames[-1]
    return files[-1].endswith("torch/nn/modules/activation.py") or "causal" in _line(file, line)


def _line(file: str, number: int) -> str:
    return linecache.getline(file, number).strip()


def _library_line(frames: Frames) -> tuple[str, ...]:
    """Where in a library the cause lies, when the user's line only leads there."""
    own = [index for index, frame in enumerate(frames) if not is_library(frame[0])]
    inner = [frame for frame in frames[own[-1] + 1 :] if _is_telling(frame[0])] if own else []
    if not inner:
        return ()
    file, number = inner[-1]
    return (f"it happens in {shown_file(file)}:{number}   {_line(file, number)}",)


def _is_telling(file: str) -> bool:
    parts = Path(file).parts
    if file.startswith("<"):
        return False
    return "torch" not in parts or parts[parts.index("torch") + 1] in ("nn", "distributions")


def _is_data_dependent(error: BaseException) -> bool:
    kind = getattr(error, "gb_type", None) or getattr(error, "case_name", None) or ""
    if isinstance(error.__cause__, GuardOnDataDependentSymNode) or _DATA.search(str(kind)):
        return True
    return isinstance(error, UserError) and is_about_data(str(error))


def is_about_data(message: str) -> bool:
    """Whether torch says that a number which is only known from data decided something."""
    return "data-dependent expression" in message


def _frames(error: BaseException) -> list[tuple[str, int]]:
    stack: Any = getattr(error, "real_stack", None)
    if stack:
        return [(frame.filename, frame.lineno or 0) for frame in stack]
    found = frames_in(str(error))
    if found:
        return found
    return [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]


_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)


def frames_in(text: str) -> list[tuple[str, int]]:
    """The frames of a traceback that torch has put into a message."""
    return [(match["file"], int(match["line"])) for match in _FRAME.finditer(text)]


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@cache
def _registry() -> dict[str, str]:
    """torch's own list of breaks: the explanation of each kind."""
    path = Path(torch.__file__).parent / "_dynamo" / "graph_break_registry.json"
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {each[-1]["Gb_type"]: each[-1]["Explanation"] for each in entries.values() if each}


def _explanation(kind: str, message: str) -> tuple[str, ...]:
    match = _EXPLANATION.search(message)
    text = match["text"].strip() if match else _registry().get(kind, "")
    text = text.replace("Dynamo", "the tracer")
    return (text,) if text and "{" not in text and not _INTERNAL.search(text) else ()


def _hints(message: str) -> tuple[str, ...]:
    hints = [match["hint"].strip() for match in _HINT.finditer(message)]
    return tuple(
        dict.fromkeys(
            hint
            for hint in hints
            if not _INTERNAL.search(hint) and not any(word in hint.lower() for word in _NOT_OURS)
        )
    )
