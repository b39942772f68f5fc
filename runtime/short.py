"""The short way of a call: one function, generated for a model, for what calls nearly always are.

Plain positional arguments, all of them numpy arrays or all of them torch tensors on the CPU, that meet
the contract. Whatever else a call is, it gets `MISS`, and goes the long way (`Model.__call__`), which
does the same to any tensor and says what is wrong. As in `guards`, the source that is generated holds
names made here and numbers: no text of a file is ever in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..artifacts.contract import Contract, Leaf, TensorOutput
from .guards import Check
from .library import load_ffi
from .results import WORTH, GivenResult
from .shutdown import GENERATED
from .tensors import ALIGNMENT, COMPLEX, DLPACK_VERSION, VERSIONED, WITHOUT_NUMPY, bits_of, copy_of

MISS = object()

Short = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Way:
    """What a short way needs to know of its model.

    Attributes:
        taken: the inputs of the compiled function: index, dtype, and whether it may be empty.
        sized: for each variant, how many of the sizes that the check answers its function takes. The
            last thing that the check answers is the variant.
        results: how many tensors it returns.
        given: those for which there is memory once they are large: calls for the long way.
        weights: where the weights lie, from and to: what lies there is not given away.
        local: has the calling thread's ``worker``, once it has called the model.
        here: the calling thread's pool, which must be set to ``threads``.
        build: puts the flat results into their structure.
        stopped: makes an exception of the compiled code of a variant the error to raise.
    """

    contract: Contract
    taken: Sequence[tuple[int, str, bool]]
    sized: Sequence[int]
    results: int
    given: Sequence[GivenResult]
    weights: tuple[int, int]
    local: Any
    here: Any
    threads: int
    build: Callable[[Sequence[Any]], Any]
    stopped: Callable[[BaseException, int], BaseException]


def for_numpy(way: Way, check: Check) -> Short | None:
    """The short way of numpy arrays; None where there is none for this model."""
    if not VERSIONED or WITHOUT_NUMPY.intersection(_dtypes(way)):
        return None
    return _compile(way, check, _Numpy())


def for_torch(way: Way, check: Check, tensor: type) -> Short | None:
    """The short way of torch tensors: TVM's binding takes them, and answers in them."""
    if not hasattr(tensor, "__dlpack_c_exchange_api__"):
        return None
    return _compile(way, check, _Torch())


def _dtypes(way: Way) -> list[str]:
    given = [each.dtype for each in way.contract.outputs if isinstance(each, TensorOutput)]
    return [*(dtype for _, dtype, _ in way.taken), *given]


class _Numpy:
    scope: dict[str, Any]

    def __init__(self) -> None:
        self.scope = {
            "from_dlpack": load_ffi().from_dlpack, "V": DLPACK_VERSION, "array_of": np.from_dlpack,
        }  # fmt: skip

    def take(self, at: int, index: int, empty: bool) -> list[str]:
        """The TVM tensor x, its address p, and in s whether there has to be a copy (then its slot)."""
        return [
            *([f"if not a{index}.size: return MISS"] if empty else []),
            f"x{at} = from_dlpack(a{index}.__dlpack__(max_version=V))",
            f"p{at} = x{at}.data_ptr()",
            f"s{at} = p{at} % {ALIGNMENT} or not x{at}.is_contiguous()",
        ]

    def copied(self, at: int, index: int) -> list[str]:
        """The copy, where there has to be one. It takes long: what a handler of a signal raises then
        must not be taken for a miss. `Staging.copy` and `Staging.give_back` are written out here: most
        arrays of numpy are copied, for it aligns them to 16 bytes."""
        return [
            f"if s{at}:",
            f"    s{at} = worker.staging.free.pop((a{index}.shape, t{at}), None)",
            f"    if s{at} is None: s{at} = worker.staging.copy(a{index}, t{at})",
            f"    else: s{at}.memory[...] = a{index}",
            f"    x{at} = s{at}.tensor",
            f"    p{at} = s{at}.place",
        ]

    def ended(self, at: int) -> list[str]:
        return [
            f"if s{at}:",
            "    counts.copies += 1",
            f"    counts.copied_bytes += s{at}.nbytes",
            f"    if s{at}.small: worker.staging.free[s{at}.key] = s{at}",
        ]

    def item(self, number: int) -> str:
        return f"item(answer, {number})"

    def give(self, number: int) -> str:
        return f"array_of(r{number})"  # as `to_numpy`, in a numpy that leaves it writable


class _Torch:
    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}

    def take(self, at: int, index: int, empty: bool) -> list[str]:
        return [
            f"x{at} = a{index}",
            # Such a tensor's memory does not hold its numbers, or not all that autograd is told.
            f"if x{at}.requires_grad or not x{at}.is_cpu or x{at}.is_neg() or x{at}.is_conj():",
            "    return MISS",
            f"p{at} = x{at}.data_ptr()",
            f"if not p{at} or p{at} % {ALIGNMENT} or not x{at}.is_contiguous(): return MISS",
        ]

    def copied(self, at: int, index: int) -> list[str]:
        return []

    def ended(self, at: int) -> list[str]:
        return []

    def item(self, number: int) -> str:
        return f"answer[{number}]"

    def give(self, number: int) -> str:
        return f"r{number}"


def _compile(way: Way, check: Check, library: _Numpy | _Torch) -> Short | None:
    outputs = way.contract.outputs
    if not way.taken or not all(isinstance(each, TensorOutput) for each in outputs):
        return None
    if not COMPLEX.keys().isdisjoint(_dtypes(way)):
        return None
    numbers = [each.result for each in outputs if isinstance(each, TensorOutput)]
    taken = len(way.taken)
    lines = ["try:", "    sizes = check(args)", "    worker = local.worker"]
    inner = [
        "if sizes is None or here.count != threads: return MISS",
        "".join(f"a{index}, " for index in range(len(way.contract.inputs))) + "= args",
    ]
    for result in way.given:
        sizes = [f"sizes[{place}]" for place in result.shape]
        count = " * ".join([f"{bits_of(result.dtype).itemsize}", *sizes])
        inner.append(f"if {count} >= {WORTH}: return MISS")
    for at, (index, _, empty) in enumerate(way.taken):
        inner += library.take(at, index, empty)
    inner.append("variant = sizes[-1]")
    uniform = len(set(way.sized)) == 1
    if any(way.sized):
        shown = f"{way.sized[0]}" if uniform else "sized[variant]"
        inner.append(f"shape = worker.shape(sizes[:{shown}])")
    inner.append("function = worker.functions[variant]")
    lines += [f"    {line}" for line in inner]
    lines += ["except Exception:", "    return MISS"]  # the long way finds out what it was
    for at, (index, _, _) in enumerate(way.taken):
        lines += library.copied(at, index)
    tensors = ", ".join(f"x{at}" for at in range(taken))
    call = f"function({tensors}, shape)" if any(way.sized) else f"function({tensors})"
    if not uniform:
        call = f"{call} if sized[variant] else function({tensors})"
    lines += [
        "began = clock()",
        "try:",
        f"    answer = {call}",
        "except BaseException as error:",
        "    failure = stopped(error, variant)",
        "    if failure is error: raise",
        "    raise failure from None",
        "counts = worker.counts",
        "counts.nanoseconds += clock() - began",
        "counts.calls[variant] += 1",
    ]
    for at in range(taken):
        lines += library.ended(at)
    places = ", ".join(f"p{at}" for at in range(taken))
    single = way.results == 1
    for number in dict.fromkeys(numbers):
        item = library.item(number)
        lines += [
            f"r{number} = {item} if type(answer) is Array else answer" if single else
            f"r{number} = {item}",
            f"q = r{number}.data_ptr()",
            f"if q in ({places},) or {way.weights[0]} <= q < {way.weights[1]}:",
            f"    r{number} = own(r{number})",
        ]  # fmt: skip
    given = [library.give(number) for number in numbers]
    alone = isinstance(way.contract.result, Leaf)
    lines.append(f"return {given[0]}" if alone else f"return build(({', '.join(given)},))")
    ffi = load_ffi()
    scope: dict[str, Any] = {
        "__builtins__": {}, "type": type, "Exception": Exception, "BaseException": BaseException,
        "MISS": MISS, "check": check,
        "local": way.local, "here": way.here, "threads": way.threads, "stopped": way.stopped,
        "build": way.build, "sized": tuple(way.sized), "clock": time.perf_counter_ns,
        "Array": ffi.Array,
        "item": ffi.get_global_func("ffi.ArrayGetItem"),
        "own": copy_of if isinstance(library, _Numpy) else lambda tensor: tensor.clone(),
        **library.scope,
        **{f"t{at}": dtype for at, (_, dtype, _) in enumerate(way.taken)},
    }  # fmt: skip
    source = "def short(args):\n" + "".join(f"    {line}\n" for line in lines)
    exec(compile(source, GENERATED, "exec"), scope)
    short: Short = scope["short"]
    return short
