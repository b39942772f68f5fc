"""What a calling thread has for itself: a VM on the shared code, staging memory, counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..artifacts.errors import Diagnostic, GuardError
from ..artifacts.expr import MAX_MAGNITUDE
from ..artifacts.manifest import Entry
from .guards import Sizes
from .library import LOADING, load_ffi
from .results import GivenResult, Spare
from .tensors import Staging

_CPU = 1
# TVM's pooled allocator keeps what one large call took for ever; this one gives it back, and is as
# fast, as malloc keeps what is used again and again.
_NAIVE_ALLOCATOR = 1
ON_CPU = (_CPU, 0, _NAIVE_ALLOCATOR)  # DLPack's device type and number, and the allocator


@dataclass(frozen=True)
class Metrics:
    """Counts since a model was loaded, at one moment; all threads together.

    ``copies`` are inputs that had to be copied (strided or unaligned), ``copied_bytes`` their
    size; ``violations`` counts refused calls by code, and ``guards`` by the guard that refused;
    ``seconds`` were spent in compiled code; ``variants`` counts the calls that each variant served, by
    its name, where there are several; ``replays`` are the calls that were a launch of a CUDA graph.
    """

    calls: int = 0
    copies: int = 0
    copied_bytes: int = 0
    violations: Mapping[str, int] = field(default_factory=dict)
    guards: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    variants: Mapping[str, int] = field(default_factory=dict)
    replays: int = 0


@dataclass(frozen=True)
class Code:
    """The compiled code and what it is called with; shared by all threads. ``devices`` is what a VM
    is told of where it runs: three numbers a device, the CPU last."""

    library: Any
    entries: tuple[Entry, ...]
    weights: tuple[tuple[Any, ...], ...]
    devices: tuple[int, ...] = ON_CPU


class Counts:
    """What one thread has counted: nobody else writes to it, so that it needs no lock."""

    __slots__ = ("calls", "copied_bytes", "copies", "nanoseconds", "replays")

    def __init__(self, variants: int) -> None:
        self.calls = [0] * variants  # of each variant
        self.copies = self.copied_bytes = self.nanoseconds = self.replays = 0

    def add(self, other: Counts) -> None:
        self.calls = [a + b for a, b in zip(self.calls, other.calls, strict=True)]
        self.copies += other.copies
        self.copied_bytes += other.copied_bytes
        self.nanoseconds += other.nanoseconds
        self.replays += other.replays


class Worker:
    """What a calling thread has for itself: a VM, which only one thread may use, and staging."""

    SHAPES = 256

    def __init__(self, code: Code, counts: Counts, given: Sequence[Sequence[GivenResult]]) -> None:
        ffi = load_ffi()
        self.given = given
        self._code = code
        self._start()
        self._results = [range(entry.results) for entry in code.entries]
        self.spare = [Spare(results) for results in given]
        self._array, self._shape = ffi.Array, ffi.Shape
        self._item = ffi.get_global_func("ffi.ArrayGetItem")
        self._shapes: dict[Sizes, Any] = {}
        self.staging = Staging()
        self.on_gpu: Any = None  # what `gpu_call` keeps for a thread
        self.counts = counts

    def _start(self) -> None:
        """Make the VM, or make it anew."""
        code = self._code
        with LOADING:
            vm = code.library["vm_load_executable"]()
            vm["vm_initialization"](*code.devices)
            self.vm = vm  # tools.kernel_times asks it to tell of what it calls
            self.functions = [
                _bound(vm, entry.function, weights)
                for entry, weights in zip(code.entries, code.weights, strict=True)
            ]
            self._into = [
                _bound(vm, entry.into, weights) if results else None
                for entry, weights, results in zip(
                    code.entries, code.weights, self.given, strict=True
                )
            ]

    def let_go(self) -> None:
        """Keep no memory for the next call. One that runs keeps what it has until it ends."""
        if self._code.devices == ON_CPU:
            self._start()  # a VM keeps what its last call has computed
        self.staging = Staging()
        self.spare = [Spare(results) for results in self.given]
        self.on_gpu = None

    def run(self, variant: int, *arguments: Any) -> list[Any]:
        """Call the compiled function of a variant; the tensors that it returns."""
        return self._tensors(self.functions[variant](*arguments), self._results[variant])

    def run_into(self, variant: int, *arguments: Any) -> list[Any]:
        """The same with memory for results, from `spare`, behind the other arguments."""
        into: Any = self._into[variant]
        return self._tensors(into(*arguments), self._results[variant])

    def _tensors(self, answer: Any, results: Sequence[int]) -> list[Any]:
        if type(answer) is not self._array:
            return [answer]
        return [self._item(answer, number) for number in results]

    def shape(self, sizes: Sizes) -> Any:
        """A tvm_ffi.Shape; making one costs as much as a small kernel, so they are kept.

        Raises:
            GuardError: TC307, there is no such size.
        """
        found = self._shapes.get(sizes)
        if found is None:
            for size in sizes:
                if not -MAX_MAGNITUDE <= size < MAX_MAGNITUDE:
                    raise _beyond(size)
            if len(self._shapes) >= self.SHAPES:
                self._shapes.clear()
            found = self._shapes[sizes] = self._shape(sizes)
        return found


def _beyond(size: int) -> GuardError:
    place, got, needs = "the call", f"a size of {size}", "sizes of 64 bits"
    return GuardError(
        Diagnostic("TC307", f"{place}: got {got}, needs {needs}"),
        argument=place,
        got=got,
        needs=needs,
        guard=f"{place}: {needs}",
    )


def _bound(vm: Any, name: str, weights: Sequence[Any]) -> Any:
    """A function of the compiled code, its last arguments given once and for all."""
    if weights:
        vm["save_function"](name, f"{name} with weights", True, *weights)
        name = f"{name} with weights"
    return vm[name]
