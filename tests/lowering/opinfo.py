"""Torch's own samples for an op (its OpInfo), lowered and compared with eager.

All samples of an op, of all dtypes, are traced as one module, with every axis of more than one element
dynamic, and compiled once. It is run with the samples as they are, and with each axis one element
longer where that keeps the trace's guards and eager takes it. Samples that are refused so are tried
with the axes of their first tensor dynamic, and then with none. Where a program fails as a whole,
halves of its samples are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from tcexport.exporter.eager import quietly, same_numbers
from tcexport.exporter.examples import contiguous_clone

from .opinfo_programs import Axes, Program, Refused, compiled, refusal, traced

DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
_SAMPLES = {torch.float32: 4}  # of the other dtypes, one

See = Callable[[torch.export.ExportedProgram, bool], None]


@dataclass
class Outcome:
    """What became of an op's samples.

    Attributes:
        equal: the dtypes of which all samples equal eager; ``part``: of which some do, and the others
            are refused.
        samples, several, fixed: how many samples equal eager; how many of them at several sizes; and
            how many with fixed sizes alone.
        refused: why some are refused.
        ops: the ops of core ATen in programs that equal eager, before and after decomposition.
        wrong: other numbers, dtypes or shapes than eager's, and whatever is neither them nor a refusal.
    """

    equal: list[str] = field(default_factory=list)
    part: list[str] = field(default_factory=list)
    samples: int = 0
    several: int = 0
    fixed: int = 0
    refused: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Sampled(nn.Module):
    """One sample as a module of its tensors; everything else of the call is fixed."""

    def __init__(self, op: Callable[..., Any], sample: SampleInput) -> None:
        super().__init__()
        self.op = op
        self.writes = False
        call = (sample.input, tuple(sample.args), dict(sample.kwargs))
        flat, self.spec = pytree.tree_flatten(call)
        self.places = [at for at, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(_plain(flat[at]) for at in self.places)
        self.rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]

    def forward(self, *tensors: torch.Tensor) -> Any:
        flat = list(self.rest)
        for at, tensor in zip(self.places, tensors, strict=True):
            # A model that writes to its input is refused, whatever it writes.
            flat[at] = tensor.clone() if self.writes else tensor
        first, args, kwargs = pytree.tree_unflatten(flat, self.spec)
        return self.op(first, *args, **kwargs)

    def eager(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Results for copies of ``tensors``."""
        copies = [tensor.clone() for tensor in tensors]
        with torch.no_grad(), quietly():
            result = self(*copies)
        self.writes = self.writes or any(tensor._version for tensor in copies)
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return [contiguous_clone(leaf) for leaf in leaves]


@dataclass(frozen=True)
class _Sample:
    dtype: torch.dtype
    what: str
    module: Sampled
    expected: list[torch.Tensor]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.module.tensors


class _Together(nn.Module):
    """Samples as one module: one trace, and one compilation, for all of them."""

    def __init__(self, samples: Sequence[_Sample]) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, *tensors: torch.Tensor) -> list[list[torch.Tensor]]:
        rest, found = iter(tensors), []
        for sample in self.samples:
            result = sample.module(*(next(rest) for _ in sample.tensors))
            leaves = pytree.tree_leaves(result)
            found.append([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
        return found


@dataclass(frozen=True)
class _Wrong:
    text: str


@dataclass(frozen=True)
class _Equal:
    ops: frozenset[str]
    fixed: bool
    several: bool


_Fate = _Equal | Refused | _Wrong
_Fates = list[tuple[_Sample, _Fate]]


def outcome(op: OpInfo, see: See) -> Outcome:
    """Lower and run an op's samples. ``see`` is told of each program that equals eager, and whether
    all of its samples do at several sizes."""
    samples = [
        each
        for dtype in DTYPES
        if dtype in op.supported_dtypes("cpu")
        for each in _samples(op, dtype)
    ]
    fates: _Fates = []
    refused: dict[str, list[_Sample]] = {}
    for each, fate in _fates(samples, see, Axes.ALL):
        if isinstance(fate, Refused):
            refused.setdefault(str(fate), []).append(each)
        else:
            fates.append((each, fate))
    for group in refused.values():
        fates += _with_fewer(group, see)
    return _summary(fates)


def _with_fewer(group: Sequence[_Sample], see: See) -> _Fates:
    """What becomes, with fewer axes dynamic, of samples that are refused for the same reason."""
    for axes in (Axes.FIRST, Axes.NONE):
        (first,) = _fates(group[:1], see, axes)
        if not isinstance(first[1], Refused):
            return [first, *_fates(group[1:], see, axes)]
    # It is not for its sizes, and the others need not be tried.
    return [(each, first[1]) for each in group]


def _summary(fates: _Fates) -> Outcome:
    found = Outcome()
    kinds: dict[str, set[type]] = {}
    for each, fate in fates:
        kinds.setdefault(str(each.dtype).removeprefix("torch."), set()).add(type(fate))
        if isinstance(fate, _Wrong):
            found.wrong.append(f"{each.what}: {fate.text}"[:1500])
        elif isinstance(fate, Refused):
            found.refused = sorted({*found.refused, str(fate)})
        else:
            found.samples += 1
            found.several += fate.several
            found.fixed += fate.fixed
            found.ops = sorted({*found.ops, *fate.ops})
    found.equal = sorted(dtype for dtype, each in kinds.items() if each == {_Equal})
    found.part = sorted(dtype for dtype, each in kinds.items() if {_Equal} < each)
    return found


def _samples(op: OpInfo, dtype: torch.dtype) -> Iterator[_Sample]:
    """Some of an op's samples, from the first to the last, with eager's answers."""
    torch.manual_seed(0)
    every = [
        each for each in op.sample_inputs("cpu", dtype, requires_grad=False) if _is_plain(each)
    ]
    most = _SAMPLES.get(dtype, 1)
    if len(every) > most:
        last = len(every) - 1
        every = [every[at * last // (most - 1) if most > 1 else last // 2] for at in range(most)]
    for number, sample in enumerate(every):
        module = Sampled(op.op, sample).eval()
        try:
            expected = module.eager(module.tensors)
        except Exception:  # a sample that eager mode refuses shows nothing
            continue
        what = f"{str(dtype).removeprefix('torch.')} sample {number} {sample.summary()}"
        yield _Sample(dtype, what[:400], module, expected)


def _is_plain(sample: SampleInput) -> bool:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return all(tensor.layout is torch.strided for tensor in tensors)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


# --- what becomes of them -------------------------------------------------------------------------


def _fates(samples: Sequence[_Sample], see: See, axes: Axes) -> _Fates:
    """All at once where that goes, else without those that are refused alone, else by halves."""
    if not samples:
        return []
    try:
        return _compared(samples, see, axes)
    except Refused as refused:
        if len(samples) == 1:
            return [(samples[0], refused)]
        kinds = [
            [each for each in samples if each.dtype.is_complex is kind] for kind in (False, True)
        ]
        if all(kinds):  # of an op that is not lowered for complex numbers, the others are
            return [fate for kind in kinds for fate in _fates(kind, see, axes)]
        alone = [(each, refusal(_Together([each]), each.tensors, axes)) for each in samples]
        found: _Fates = [(each, fate) for each, fate in alone if fate is not None]
        if found:
            rest = [each for each, fate in alone if fate is None]
            return [*found, *_fates(rest, see, axes)]
    except Exception as error:  # whatever a compiler raises is told
        if len(samples) == 1:
            return [(samples[0], _Wrong(f"{type(error).__name__}: {error}"))]
    middle = len(samples) // 2
    return _fates(samples[:middle], see, axes) + _fates(samples[middle:], see, axes)


def _compared(samples: Sequence[_Sample], see: See, axes: Axes) -> _Fates:
    tensors = [tensor for each in samples for tensor in each.tensors]
    program = traced(_Together(samples), tensors, axes)
    run = compiled(program)
    wrong = _differences(samples, run(tensors), [each.expected for each in samples])
    several = [False] * len(samples)
    if not any(wrong):
        wrong, several = _at_other_sizes(samples, program, run)
    fates: _Fates = [
        (each, _Equal(program.ops, axes is Axes.NONE, more) if text is None else _Wrong(text))
        for each, text, more in zip(samples, wrong, several, strict=True)
    ]
    if not any(wrong):
        see(program.program, all(several))
    return fates


def _differences(
    samples: Sequence[_Sample],
    results: Sequence[torch.Tensor],
    expected: Sequence[Sequence[torch.Tensor]],
) -> list[str | None]:
    rest = iter(results)
    found = [
        _difference(wanted, [next(rest) for _ in wanted])
        for _, wanted in zip(samples, expected, strict=True)
    ]
    if next(rest, None) is not None:
        raise AssertionError("more results than eager gives")
    return found


def _at_other_sizes(
    samples: Sequence[_Sample], program: Program, run: Callable[..., list[torch.Tensor]]
) -> tuple[list[str | None], list[bool]]:
    """What differs with longer axes, and of which samples there are any that the guards let in."""
    first, grown = 0, []
    for each in samples:
        grown.append(_longer(each, program, first))
        first += len(each.tensors)
    several = [longer is not None for longer in grown]
    if not any(several):
        return [None] * len(samples), several
    inputs: list[torch.Tensor] = []
    expected = []
    for each, longer in zip(samples, grown, strict=True):
        inputs += each.tensors if longer is None else longer[0]
        expected.append(each.expected if longer is None else longer[1])
    try:
        results = run(inputs)
    except Exception as error:
        if len(samples) > 1:
            raise  # each on its own
        return [f"at other sizes: {type(error).__name__}: {error}"], several
    found = _differences(samples, results, expected)
    return [text and f"at other sizes: {text}" for text in found], several


def _longer(
    sample: _Sample, program: Program, first: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """A sample's tensors with dynamic axes one longer, and eager's results for them; None where a
    guard of the trace, or eager, does not take them."""
    shapes = program.longer(range(first, first + len(sample.tensors)))
    if shapes is None:
        return None
    tensors = [_stretched(t, shape) for t, shape in zip(sample.tensors, shapes, strict=True)]
    try:
        return tensors, sample.module.eager(tensors)
    except Exception:  # of data that does not fit its sizes any more
        return None


def _stretched(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Repeated along each axis; floats a little smaller there, so that few are equal."""
    for axis, size in enumerate(shape):
        before = tensor.shape[axis]
        if size == before:
            continue
        more = tensor.index_select(axis, torch.arange(before, size) % before)
        if tensor.is_floating_point() or tensor.is_complex():
            more = more * 0.96875
        tensor = torch.cat([tensor, more], axis)
    return tensor


def _difference(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> str | None:
    for position, (want, value) in enumerate(zip(expected, got, strict=True)):
        if want.is_complex():
            value = torch.view_as_complex(value)
        if value.dtype != want.dtype or value.shape != want.shape:
            return (
                f"result {position} is {value.dtype}{list(value.shape)}, eager gives "
                f"{want.dtype}{list(want.shape)}"
            )
        same, error = same_numbers(value, want)
        if not same:
            shown = [t.flatten()[:8].tolist() for t in (value, want)]
            return f"result {position} differs by {error:.3g}: {shown[0]}, eager {shown[1]}"
    return None
