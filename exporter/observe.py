"""One call of the model with everything noted that a trace would lose or freeze.

Four witnesses, none enough alone: Python's profiler (every call that the user's own lines make),
its audit events (files, sockets and processes, however deep), a snapshot of the Python state, and
a watch on the memory of tensors. Where state changed, the call is made once more, line by line, to
find the line that changed it.
"""

from __future__ import annotations

import contextlib
import dis
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.variables.functions import SkipFunctionVariable
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..artifacts.errors import Location
from ..lowering.locations import is_library, is_machinery, shown_file
from .eager import quietly, uncompiled
from .examples import contiguous_clone
from .families import classify_call, classify_event, classify_function
from .reach import names_in
from .roles import branch_family
from .slots import GLOBAL_GENERATORS, same
from .state import Change, Snapshot
from .written import Write, Written, tensors_of

TORCHS = "torch"  # what has drawn, where it is torch's own generator


@dataclass(frozen=True)
class Event:
    """Something that a call did beside computing. ``family``: a key of `families.FAMILIES`;
    ``what`` fills its message."""

    family: str
    what: str
    location: Location | None


@dataclass(frozen=True)
class Observed:
    """``outputs``: the flat results, as they were when the call ended: a buffer that it writes to and
    gives back is put back afterwards; ``changes`` with the line of each, where it was found;
    ``executed``: the user's code that ran, ``functions`` what of it has a name; ``possible``: what
    stops a trace, where it does not know better. The tracer, after a break in a loop, looks at
    nothing else of that function. ``remembers``: a `functools.lru_cache` of the user's has kept what
    the call computed."""

    outputs: tuple[Any, ...]
    events: tuple[Event, ...]
    changes: tuple[tuple[Change, Location | None], ...]
    writes: tuple[Write, ...]
    executed: frozenset[types.CodeType]
    functions: tuple[types.FunctionType, ...]
    possible: tuple[Event, ...]
    remembers: bool


def observe(
    module: torch.nn.Module, call: Callable[[], Any], inputs: Mapping[str, torch.Tensor]
) -> Observed:
    """Make one call and say what else it did. Afterwards everything is as it was before.

    Args:
        call: calls the module on inputs of its own.
        inputs: the tensors that ``call`` passes, by path.
    """
    snapshot = Snapshot(module)
    watch = _Watch()
    own = {**inputs, **tensors_of(module)}
    named = {id(tensor) for tensor in own.values()}
    others = {path: each for path, each in snapshot.tensors.items() if id(each) not in named}
    written = Written({**others, **own}, _here, watch.read, watch.drew, watch.nested)
    functions = snapshot.functions
    mode: Any = contextlib.nullcontext()
    if any({"data", "numpy"} & names_in(code) for code in functions):
        mode = _TensorAccess(watch, written)
    try:
        with uncompiled(), written, mode, _auditing(watch), _profiling(watch):
            result = call()
        watch.closed = True
        outputs = tuple(contiguous_clone(value) for value in pytree.tree_leaves(result))
        changes = snapshot.changes()
        writes = written.writes()
        lines: dict[int, Location] = {}
        if changes:
            snapshot.restore()
            written.restore()
            with uncompiled(), written, mode, quietly(), contextlib.suppress(Exception):
                # The first call counts.
                lines = _lines_of(changes, call, is_library if watch.executed else is_machinery)
    finally:
        snapshot.restore()
        written.restore()
    drawn = {
        event.what == TORCHS or event.family == "dropout"
        for event in watch.events
        if event.family in ("random", "dropout") and event.location
    }
    located = tuple(
        (change, lines.get(index))
        for index, change in enumerate(changes)
        # Said of the line that drew.
        if change.slot.path not in GLOBAL_GENERATORS
        or (change.slot.path == "torch.random") not in drawn
    )
    return Observed(
        outputs,
        tuple(watch.events),
        located,
        tuple(writes),
        frozenset(watch.executed),
        tuple(function for code, function in functions.items() if code in watch.executed),
        tuple(watch.possible),
        snapshot.remembers(),
    )


# --- where the user's code is ---------------------------------------------------------------------


def _users_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The nearest frame of the user's code, outwards, that a call of the model has made."""
    while frame is not None and frame.f_code is not observe.__code__:
        if not is_library(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def _location(frame: types.FrameType) -> Location:
    file = frame.f_code.co_filename
    return Location(file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())


def _models_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The nearest frame of the user's code; of a model that is a library's, the library's."""
    users = _users_frame(frame)
    while users is None and frame is not None and frame.f_code is not observe.__code__:
        if not is_machinery(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return users


def _here() -> Location | None:
    frame = _models_frame(sys._getframe(1))
    return _location(frame) if frame is not None else None


# --- the witnesses --------------------------------------------------------------------------------


class _Watch:
    """Collects the events of one call."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.executed: set[types.CodeType] = set()
        self.possible: list[Event] = []
        self.closed = False  # a call that is made again to find lines is the same call

    def note(self, family: str, what: str, frame: types.FrameType) -> None:
        if not self.closed:
            self.events.append(Event(family, what, _location(frame)))

    def profile(self, frame: types.FrameType, event: str, argument: Any) -> None:
        """What `sys.setprofile` calls: for every call, of Python and of C functions."""
        if event == "c_call":
            if is_library(frame.f_code.co_filename):
                return
            found = classify_call(
                getattr(argument, "__module__", None) or "",
                argument.__qualname__,
                getattr(argument, "__self__", None),
            )
            if found is not None:
                self.note(*found, frame)
            elif _is_skipped(argument):
                family, what = classify_function(argument.__module__, argument.__qualname__)
                self.possible.append(Event(family, what, _location(frame)))
        elif event == "call" and not is_library(frame.f_code.co_filename):
            self.executed.add(frame.f_code)
        elif event == "call":
            caller = frame.f_back
            name = frame.f_code.co_name
            if caller is None or (is_library(caller.f_code.co_filename) and name != "__getitem__"):
                return
            module = frame.f_globals.get("__name__", "")
            if module == "os" and name in ("__getitem__", "__len__", "__iter__"):
                users = _users_frame(_outside_of_os(frame))
                if users is not None:
                    key = f"[{frame.f_locals['key']!r}]" if name == "__getitem__" else ""
                    self.note("environment", f"os.environ{key}", users)
            elif not is_library(caller.f_code.co_filename):
                found = classify_call(module, name, None)
                if found is not None:
                    self.note(*found, caller)

    def read(self) -> None:
        """A number is read out of a tensor. Where a line of the user's jumps on it, note that."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and shown_file(frame.f_code.co_filename).startswith(_BELOW):
            frame = frame.f_back
        if frame is None or is_library(frame.f_code.co_filename):
            return
        location = _location(frame)
        family = branch_family(location.file, location.line)
        if _jumps(frame) and family != "assert":
            self.possible.append(Event(family, "", location))

    def drew(self) -> None:
        """Torch has given random numbers."""
        frame = _models_frame(sys._getframe(1))
        if frame is not None:
            through = sys._getframe(1)
            while through is not frame and not _is_dropout(through):
                through = through.f_back or frame
            self.note("dropout" if _is_dropout(through) else "random", TORCHS, frame)

    def nested(self) -> None:
        """nn.TransformerEncoder looks at a padding mask, to decide how it computes."""
        frame = _models_frame(sys._getframe(1))
        if frame is not None:
            self.note("nested", "", frame)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What `sys.addaudithook` calls."""
        found = classify_event(event, arguments)
        if found is None:
            return
        frame = sys._getframe(2)
        users = _users_frame(frame)
        if users is not None and not _is_machinery(frame, users):
            self.note(*found, users)


_BELOW = ("torch/", "observe.py", "written.py", "tcexport/")


def _is_dropout(frame: types.FrameType) -> bool:
    """Whether a frame is one of torch's functions of this name."""
    code = frame.f_code
    return "dropout" in code.co_name and shown_file(code.co_filename) == _FUNCTIONAL


_FUNCTIONAL = "torch/nn/functional.py"


def _jumps(frame: types.FrameType) -> bool:
    """Whether the instruction that a frame is at decides where to go on."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset == frame.f_lasti:
            name = instruction.opname
            return ("JUMP" in name and "_IF_" in name) or name in ("TO_BOOL", "UNARY_NOT")
    return False


def _is_skipped(function: Any) -> bool:
    """Whether a function of a C extension is one that Dynamo does not trace."""
    home = getattr(function, "__self__", None)
    if not isinstance(home, types.ModuleType) or home.__name__ in ("builtins", "_operator"):
        return False
    skipped = trace_rules.lookup_callable(function) is None
    return skipped and trace_rules.lookup(function) is SkipFunctionVariable


def _outside_of_os(frame: types.FrameType) -> types.FrameType | None:
    """The caller of a read of the environment, or None where a library reads it."""
    caller = frame.f_back
    while caller is not None and caller.f_globals.get("__name__") in ("os", "collections.abc"):
        caller = caller.f_back
    if caller is None or is_library(caller.f_code.co_filename):
        return None
    return caller


def _is_machinery(frame: types.FrameType | None, end: types.FrameType) -> bool:
    """Whether Python or torch serve themselves: an import, a line to be shown, a cache of torch's."""
    while frame is not None and frame is not end:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        name = frame.f_globals.get("__name__", "")
        if name in ("linecache", "tokenize", "inspect") or name.startswith("torch._"):
            return True
        frame = frame.f_back
    return False


_auditor: list[_Watch] = []
_hooked = False


@contextlib.contextmanager
def _auditing(watch: _Watch) -> Iterator[None]:
    """An audit hook cannot be taken off again: one is put on for good, and sleeps."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hear)
        _hooked = True
    _auditor.append(watch)
    try:
        yield
    finally:
        _auditor.remove(watch)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _auditor:
        _auditor[-1].audit(event, arguments)


@contextlib.contextmanager
def _profiling(watch: _Watch) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(watch.profile)
    try:
        yield
    finally:
        if before is None or callable(before):
            sys.setprofile(before)
        else:  # a profiler written in C, such as cProfile's, puts itself in
            sys.setprofile(None)
            before.enable()


class _TensorAccess(TorchFunctionMode):
    """Follows what comes from ``.data``, which a trace does not: writing to it is noted."""

    def __init__(self, watch: _Watch, written: Written) -> None:
        super().__init__()
        self._watch = watch
        self._written = written
        self._loose: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        name = getattr(func, "__name__", "")
        data = torch.Tensor.data
        if func == data.__set__ or (id(first) in self._loose and _writes(name)):
            frame = _users_frame(sys._getframe(1))
            if frame is not None:
                self._watch.note("data", "", frame)
        if name in ("numpy", "__array__", "data_ptr") and isinstance(first, torch.Tensor):
            self._written.save(first)
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and isinstance(first, torch.Tensor):
            is_view = id(first) in self._loose and (
                result.untyped_storage()._cdata == first.untyped_storage()._cdata
            )
            if func == data.__get__ or is_view:
                self._loose[id(result)] = result
        return result


def _writes(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in ("__setitem__", "__set__") or name.startswith("__i")


# --- the line that changed something --------------------------------------------------------------


def _lines_of(
    changes: Sequence[Change], call: Callable[[], Any], ignored: Callable[[str], bool]
) -> dict[int, Location]:
    """For each change, by its index, the line after which it was first to be seen, in a file that is
    not ``ignored``."""
    found: dict[int, Location] = {}
    values = [change.slot.read().get(change.key) for change in changes]
    last: list[Location | None] = [None]

    def look() -> None:
        for index, change in enumerate(changes):
            if index in found or last[0] is None:
                continue
            if not same(values[index], change.slot.read().get(change.key)):
                found[index] = last[0]

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if ignored(frame.f_code.co_filename):
            return None
        look()
        if event == "return":
            caller = _models_frame(frame.f_back)
            last[0] = _location(caller) if caller is not None else None
        else:
            last[0] = _location(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return found
