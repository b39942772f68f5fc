"""The finished file against eager, before anyone can see it: loaded by the runtime, in its own process.

At each point the same inputs go to the model and to the bundle, and every output is compared by
shape, by dtype and by value. The example is run three times in a row, so that state shows. Where a
model keeps state, each point begins with the initial one; all of them follow each other once more in
one session, and at its end the states are compared, too. Where it draws random numbers, eager mode
draws those of the bundle (`drawing`), so that everything that is computed of them is compared.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..artifacts.contract import Contract, TensorOutput, ValueSource
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.expr import evaluate
from ..artifacts.platforms import this_platform
from ..artifacts.weights import Weight, read_weights, write_weights
from ..lowering.states import states
from ..lowering.targets import CpuTarget, GpuTarget, Target
from .breaks import eager_failure
from .derive import Derived
from .drawing import SEED
from .eager import run_eager, same_numbers
from .examples import axis_sizes, drawn, resized
from .points import Point, choose
from .reference import NoAnswer, Reference
from .sessions import EagerSession, buffers, draws, eager_session
from .trace import Trace
from .undecided import other_answers, undecided

_REPEATS = 3
_SECONDS = 900


@dataclass(frozen=True)
class Checked:
    """One comparison: of which target, where, the largest absolute difference; or why it was not
    made. Without ``sizes`` it is about the whole target; with ``variant``, about that one alone.
    ``against``: with whose answers; those of a reference are compared with eager's own, and the
    target is then "eager". ``undecided``: it is as far away as eager's own answers are from each other
    (see `undecided`)."""

    target: str
    why: str
    sizes: dict[str, int]
    error: float
    skipped: str = ""
    variant: str = ""
    against: str = "eager"
    undecided: bool = False


@dataclass(frozen=True)
class Part:
    """What is compared: a variant by its name, run whatever the sizes are, or "", the bundle as it is
    called, with the trace that it is made from and its contract."""

    variant: str
    traced: Trace
    derived: Derived


@dataclass(frozen=True)
class _Call:
    part: Part
    point: Point
    leaves: list[Any]
    outputs: list[Any]
    fresh: bool = True  # on the initial state


def verify(
    bundle: Path,
    module: torch.nn.Module,
    parts: Sequence[Part],
    targets: Sequence[Target],
    workdir: Path,
    references: Sequence[Reference] = (),
) -> tuple[Checked, ...]:
    """Compare each binary of a finished bundle with the model at several sizes.

    Args:
        bundle: the file, under whatever name.
        parts: first the bundle itself, then its variants, where there are any: it is then called with
            the example alone.
        targets: what it holds binaries for; one that this machine cannot run is not compared, and
            the answer says so. The model is called all the same: it may fail within its range.
        workdir: a folder for the tensors that are exchanged.
        references: who else runs the model; they are asked wherever the bundle is called.

    Raises:
        ExportError: TC504, an output differs, with the sizes and the difference, or the runtime could
            not run the file; TC133, the model's answer is another than the reference's.
    """
    calls: list[_Call] = []
    skipped = [
        Checked(target.name, "not run", {}, 0.0, "not run on this machine")
        for target in targets
        if isinstance(target, GpuTarget)
    ]
    for part in parts:
        of_variants = not part.variant and len(parts) > 1
        found, failed = _calls_of(part, module, () if of_variants else None)
        if not found and not of_variants:
            what = f"the variant {part.variant}" if part.variant else "the bundle"
            raise ExportError(
                Diagnostic(
                    "TC504",
                    f"{what} could not be compared with the model at any size",
                    notes=tuple(f"{each.sizes}: {each.skipped}" for each in failed),
                )
            )
        calls += found
        skipped += failed
    state = {}
    whole = parts[0]
    referred = [each for other in references for each in _against_reference(other, calls, module)]
    if states(whole.traced.program) and calls:
        names = [each.name for each in buffers(whole.traced)]
        with eager_session(module, whole.traced.bound, names) as session:
            calls += _in_a_row(whole, calls, session)
            state = session.state()
    _record(calls, workdir / "verify", SEED if draws(whole.traced) else None)
    checked: list[Checked] = []
    for target in targets:
        if isinstance(target, GpuTarget):
            continue
        try:
            answers, kept = _replay(bundle, len(calls), target, workdir / "verify")
        except _NotHere as reason:
            skipped.append(Checked(target.name, "not run", {}, 0.0, str(reason)))
            continue
        compared = [
            _compare(call, answer, target.name, module)
            for call, answer in zip(calls, answers, strict=True)
        ]
        checked += _once_each(compared)
        _compare_states(kept, state, target.name)
    return (*checked, *referred, *skipped)


def _against_reference(
    reference: Reference, calls: Sequence[_Call], module: torch.nn.Module
) -> list[Checked]:
    """The model's answers beside those of whoever else runs its source."""
    checked = []
    for call in calls:
        why, sizes, variant = call.point.why, call.point.sizes, call.part.variant
        try:
            answers = reference([leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)])
        except NoAnswer as reason:
            checked.append(Checked("eager", why, sizes, 0.0, str(reason), variant, reference.name))
            continue
        worst = 0.0
        others: list[list[Any]] | None = None
        outputs = enumerate(zip(call.part.derived.contract.outputs, call.outputs, strict=True))
        tensors = [(at, *each) for at, each in outputs if isinstance(each[0], TensorOutput)]
        for (index, output, got), want in zip(tensors, answers, strict=True):
            same, error = same_numbers(got, want)
            worst = max(worst, error)
            if not same and others is None:
                others = _others(call, module)
            if not same and not undecided(want, got, [each[index] for each in others or ()]):
                at = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "the example"
                what = (
                    f"{_describe(got)} and {_describe(want)}"
                    if got.shape != want.shape or got.dtype != want.dtype
                    else f"up to {error:.3g} apart"
                )
                raise ExportError(
                    Diagnostic(
                        "TC133",
                        f"{output.path} as eager and as {reference.name} gives it are {what}, "
                        f"with {at}",
                    )
                )
        settled = others is None
        checked.append(
            Checked("eager", why, sizes, worst, "", variant, reference.name, undecided=not settled)
        )
    return _once_each(checked)


def _calls_of(
    part: Part, module: torch.nn.Module, points: Sequence[Point] | None
) -> tuple[list[_Call], list[Checked]]:
    """The calls at some points (None: chosen from the contract), and those that the model refuses."""
    calls: list[_Call] = []
    skipped: list[Checked] = []
    if points is None:
        points = choose(part.derived.contract, part.traced, part.derived.symbols)
    for point in points:
        try:
            calls.append(_call_at(point, module, part))
        except _ModelFails as failure:
            skipped.append(Checked("", point.why, point.sizes, 0.0, str(failure), part.variant))
    if not part.variant:
        calls += _example_calls(module, part)
    return calls, skipped


def _in_a_row(whole: Part, calls: Sequence[_Call], session: EagerSession) -> list[_Call]:
    """The same calls, each on what the last one left; twice, so that old values are written over."""
    found: list[_Call] = []
    for call in (*calls, *calls[::-1]):
        try:
            outputs = session(call.leaves)
        except Exception:  # whatever the model raises on a state that it has come to
            continue
        point = Point(f"{call.point.why}, call {len(found) + 1} in a row", call.point.sizes)
        found.append(_Call(whole, point, call.leaves, outputs, fresh=not found))
    return found


def _compare_states(
    kept: dict[str, torch.Tensor], state: Mapping[str, torch.Tensor], target: str
) -> None:
    for name, want in state.items():
        same, error = same_numbers(kept[name], want)
        if not same:
            raise ExportError(
                Diagnostic(
                    "TC504",
                    f"cpu:{target}: after some calls the state {name} differs from eager by up to "
                    f"{error:.3g}",
                )
            )


class _NotHere(Exception):
    """This machine cannot run the target's binary."""


class _ModelFails(Exception):
    """The model itself raises at a point, with values drawn and with the example's values."""


def _call_at(point: Point, module: torch.nn.Module, part: Part) -> _Call:
    traced, contract = part.traced, part.derived.contract
    generator = torch.Generator().manual_seed(0)
    ways = (
        lambda: _drawn_leaves(point, traced, contract, generator),
        lambda: _example_leaves(point, traced),
    )
    for position, leaves_of in enumerate(ways):
        leaves = _with_values(leaves_of(), point, contract)
        try:
            return _Call(part, point, leaves, run_eager(module, traced.bound, leaves))
        except Exception as error:  # whatever the user's model raises
            if position == len(ways) - 1:
                raise _ModelFails(f"the model fails: {eager_failure(error)[0]}") from error
    raise AssertionError("unreachable")


def _drawn_leaves(
    point: Point, traced: Trace, contract: Contract, generator: torch.Generator
) -> list[Any]:
    leaves: list[Any] = []
    for index, ((_, leaf), axes) in enumerate(zip(traced.bound.leaves, traced.shapes, strict=True)):
        if axes is None:
            leaves.append(leaf)
            continue
        tensor = drawn(leaf, axis_sizes(axes, point.sizes), generator)
        for guard in contract.index_guards:
            if guard.input == index:
                lo, hi = evaluate(guard.lo, point.sizes), evaluate(guard.hi, point.sizes)
                part = tensor
                for each in guard.parts:
                    start, stop = (
                        evaluate(each.start, point.sizes),
                        evaluate(each.stop, point.sizes),
                    )
                    part = part.narrow(each.axis, start, stop - start)
                part.clamp_(lo, hi)
        leaves.append(tensor)
    return leaves


def _example_leaves(point: Point, traced: Trace) -> list[Any]:
    return [
        leaf if axes is None else resized(leaf, axes, traced.example_sizes, point.sizes)
        for (_, leaf), axes in zip(traced.bound.leaves, traced.shapes, strict=True)
    ]


def _with_values(leaves: list[Any], point: Point, contract: Contract) -> list[Any]:
    for dim in contract.dims:
        if isinstance(dim.source, ValueSource):
            leaves[dim.source.input] = torch.full_like(
                leaves[dim.source.input], point.sizes[dim.name]
            )
    return leaves


def _example_calls(module: torch.nn.Module, part: Part) -> list[_Call]:
    """The user's own example, several times, where the contract serves its sizes."""
    traced, contract = part.traced, part.derived.contract
    sizes = dict(traced.example_sizes)
    for dim in contract.dims:
        if isinstance(dim.source, ValueSource):
            continue
        size = sizes[dim.name]
        inside = size >= dim.lo and (dim.hi is None or size <= dim.hi)
        if not inside or (size - dim.lo) % dim.step:
            return []
    leaves = [leaf for _, leaf in traced.bound.leaves]
    point = Point("example", sizes)
    return [
        _Call(part, point, leaves, run_eager(module, traced.bound, leaves)) for _ in range(_REPEATS)
    ]


def _record(calls: Sequence[_Call], folder: Path, seed: int | None) -> None:
    folder.mkdir()
    for number, call in enumerate(calls):
        tensors = {
            f"{index}": weight_of(leaf)
            for index, leaf in enumerate(call.leaves)
            if isinstance(leaf, torch.Tensor)
        }
        write_weights(folder / f"{number}.inputs.safetensors", tensors)
    recorded = {
        "count": len(calls),
        "fresh": [call.fresh for call in calls],
        "variants": [call.part.variant for call in calls],
        "sizes": [call.point.sizes for call in calls],
        "seed": seed,
    }
    (folder / "calls.json").write_text(json.dumps(recorded))


def _replay(
    bundle: Path, count: int, target: CpuTarget, folder: Path
) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """The outputs of the recorded calls, run by the runtime in a process of its own, and the state
    after the last."""
    here = this_platform()
    if target.level.platform != here:
        how = f"; such code was {target.level.untested}" if target.level.untested else ""
        raise _NotHere(f"this machine is a {here}{how}")
    unfit = folder / "unfit"
    unfit.unlink(missing_ok=True)
    module = "tcexport.runtime.replay"
    command = [sys.executable, "-m", module, str(bundle.resolve()), str(folder)]
    environment = os.environ | {"TCEXPORT_CPU_LEVEL": target.level.name}
    try:
        # Not in the user's folder, whose files `-m` would make importable.
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, cwd=folder, env=environment
        )
    except subprocess.TimeoutExpired:
        raise ExportError(
            Diagnostic("TC504", f"the bundle did not answer within {_SECONDS} s")
        ) from None
    if unfit.exists():
        raise _NotHere(unfit.read_text())
    if done.returncode != 0:
        raise ExportError(
            Diagnostic(
                "TC504",
                f"the runtime could not run the finished bundle (cpu:{target.name})",
                notes=last_words(done.returncode, done.stderr),
            )
        )
    files = [folder / f"{number}.outputs.safetensors" for number in range(count)]
    return [_tensors(file) for file in files], _tensors(folder / "state.safetensors")


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    return {name: tensor_of(weight) for name, weight in read_weights(_mapped(file)).items()}


def _mapped(file: Path) -> memoryview:
    with file.open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def weight_of(tensor: torch.Tensor) -> Weight:
    """A tensor as the bits that a safetensors file holds."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    contiguous = tensor.detach().contiguous()
    if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        contiguous = contiguous.view(torch.uint16 if dtype == "bfloat16" else torch.uint8)
    return Weight(contiguous.numpy(), dtype)


def tensor_of(weight: Weight) -> torch.Tensor:
    """The tensor whose bits `weight_of` gave."""
    return torch.from_numpy(weight.data.copy()).view(getattr(torch, weight.dtype))


def last_words(status: int, stderr: str) -> tuple[str, ...]:
    """How a child process ended, and the last lines it printed."""
    ended = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return (ended, *stderr.strip().splitlines()[-6:])


def _compare(
    call: _Call, answer: dict[str, torch.Tensor], target: str, module: torch.nn.Module
) -> Checked:
    worst = 0.0
    others: list[list[Any]] | None = None
    contract, variant = call.part.derived.contract, call.part.variant
    at = ", ".join(f"{name}={size}" for name, size in call.point.sizes.items()) or "the example"
    for index, (output, want) in enumerate(zip(contract.outputs, call.outputs, strict=True)):
        if not isinstance(output, TensorOutput):
            continue
        got = answer[f"{index}"]
        same, error = same_numbers(got, want)
        worst = max(worst, error)
        if not same and others is None:
            others = _others(call, module)
        if not same and not undecided(got, want, [each[index] for each in others or ()]):
            kind = (
                f"is {_describe(got)}, eager gives {_describe(want)}"
                if got.shape != want.shape or got.dtype != want.dtype
                else f"differs from eager by up to {error:.3g}"
            )
            raise ExportError(
                Diagnostic(
                    "TC504",
                    f"cpu:{target}{f', variant {variant}' if variant else ''}: with {at} "
                    f"({call.point.why}) the output {output.path} {kind}",
                )
            )
    return Checked(
        target,
        call.point.why,
        call.point.sizes,
        worst,
        variant=variant,
        undecided=others is not None,
    )


def _others(call: _Call, module: torch.nn.Module) -> list[list[Any]]:
    """Further answers of eager's; none on a state that calls have left, which eager has no more."""
    if not call.fresh:
        return []
    return other_answers(lambda: run_eager(module, call.part.traced.bound, call.leaves))


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _once_each(checked: Sequence[Checked]) -> list[Checked]:
    found: dict[tuple[Any, ...], Checked] = {}
    for each in checked:
        key = (each.variant, each.skipped, *sorted(each.sizes.items()))
        if key not in found or found[key].error < each.error:
            found[key] = each
    return list(found.values())
