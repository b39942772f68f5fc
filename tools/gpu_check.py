"""Everything that is to be seen on a GPU, in one run: numbers, refusals, speed and memory of bundles.

``python -m tcexport.tools.gpu_check encoder.tcpkg bert.tcpkg=bert.py`` needs the runtime alone. What
a GPU computes is held against results saved before (``--save FOLDER`` where torch is,
``--expected FOLDER`` where the GPU is), against the model's source under torch on the same GPU, where
both are there, or else against the same bundle on the CPU. Times are of CUDA events around calls on
device tensors, medians; others' are given as ratios to the bundle's. It ends within ``--seconds``:
what there was no time for is named.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..artifacts.contract import Contract, Dim, Fixed, TensorOutput
from ..artifacts.errors import TcexportError
from ..artifacts.expr import ExprError
from ..runtime import Model
from ..runtime import load as load_bundle
from ..runtime.drawn import drawn_inputs
from ..runtime.library import load_ffi
from ..runtime.structure import call_of
from ..runtime.tensors import WITHOUT_NUMPY, as_numpy_bits, bits_of, from_bits

_PACKAGE = (__package__ or "tcexport.tools").partition(".")[0]
POINTS = 5
CALLS = 50
_WIDEST = 512  # a dim without an upper end, or with a larger one, is tried up to here
# What may differ, over the largest absolute value of the result.
TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass
class Finding:
    """One thing that was looked at; ``bad`` when it is not as promised."""

    what: str
    found: str
    bad: bool = False


@dataclass
class Checked:
    """What was found for one bundle; ``medians`` are milliseconds by sizes and by what was called."""

    bundle: str
    findings: list[Finding] = field(default_factory=list)
    medians: dict[str, dict[str, float]] = field(default_factory=dict)

    def say(self, what: str, found: str, bad: bool = False) -> None:
        self.findings.append(Finding(what, found, bad))
        click.echo(f"{'BAD ' if bad else '    '}{what:28} {found}")


@click.command(help=__doc__)
@click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE[=SOURCE]…")
@click.option("--device", default="cuda", show_default=True)
@click.option("--expected", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--save", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seconds", default=330, show_default=True, help="for all of it")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="write it as JSON")
def main(
    bundles: Sequence[str],
    device: str,
    expected: Path | None,
    save: Path | None,
    seconds: int,
    report: Path | None,
) -> None:
    pairs = [each.partition("=")[::2] for each in bundles]
    if save is not None:
        for bundle, source in pairs:
            save_expected(Path(bundle), source, save)
        return
    end = time.monotonic() + seconds
    checked = []
    for number, (bundle, source) in enumerate(pairs):
        share = (end - time.monotonic()) / (len(pairs) - number)
        checked.append(check(Path(bundle), source, device, expected, time.monotonic() + share))
    if report is not None:
        report.write_text(json.dumps([asdict(each) for each in checked], indent=1) + "\n")
    bad = sum(finding.bad for each in checked for finding in each.findings)
    click.echo(f"{bad} bad" if bad else "all as promised")
    sys.exit(1 if bad else 0)


def check(path: Path, source: str, device: str, expected: Path | None, end: float) -> Checked:
    """Look at one bundle until ``end`` (of `time.monotonic`)."""
    found = Checked(path.name)
    click.echo(f"{path}:")
    start = time.perf_counter()
    try:
        model = load_bundle(path, device=device)
    except TcexportError as error:
        found.say("load", str(error), bad=True)
        return found
    took = 1e3 * (time.perf_counter() - start)
    found.say("load", f"{took:.0f} ms, {model.target.name} on {model.device}")
    points = list(sizes_of(model.contract))
    args, kwargs = call_of(model.contract, _values(model.contract, points[0]))
    start = time.perf_counter()
    _callable(model)(*args, **kwargs)
    found.say("first call", f"{1e3 * (time.perf_counter() - start):.0f} ms")
    module = _on_gpu(source, device) if source else None
    check_numbers(found, model, points, module, expected, path)
    check_states(found, model, points, path)
    check_refusals(found, model, path)
    recorded = check_graphs(found, model, points, path, device)
    for sizes in points:
        if time.monotonic() > end:
            found.say(f"speed at {_shown(sizes)}", "left out: no time")
            continue
        time_calls(found, model, recorded, sizes, module, end)
    check_memory(found, "memory", model)
    check_memory(found, "memory, with graphs", recorded)
    return found


# --- numbers --------------------------------------------------------------------------------------


def check_numbers(
    found: Checked,
    model: Model,
    points: Sequence[dict[str, int]],
    module: Any,
    expected: Path | None,
    path: Path,
) -> None:
    """Numpy and device tensors, at each point, against whatever knows the right results."""
    contract = model.contract
    reference: Callable[[list[Any], int], Sequence[np.ndarray]]
    if expected is not None:
        against = f"{expected}"

        def reference(values: list[Any], number: int) -> Sequence[np.ndarray]:
            with np.load(expected / f"{path.stem}-{number}.npz") as file:
                return [file[f"out{at}"] for at in range(len(_outputs(contract)))]
    elif module is not None:
        against = "torch on the GPU"

        def reference(values: list[Any], number: int) -> Sequence[np.ndarray]:
            return _by_torch(module, values, contract)
    else:
        try:
            on_cpu = load_bundle(path, device="cpu")
        except TcexportError as error:
            found.say("numbers", f"nothing to hold them against ({error.code})", bad=True)
            return
        against = "the bundle on the CPU"

        def reference(values: list[Any], number: int) -> Sequence[np.ndarray]:
            return _arrays(_called(on_cpu, values), contract)

    for number, sizes in enumerate(points):
        values = _values(contract, sizes)
        try:
            wanted = reference(values, number)
        except FileNotFoundError as error:
            found.say(f"numbers at {_shown(sizes)}", f"no {error.filename}", bad=True)
            continue
        got = _arrays(_called(model, values), contract)
        on_device = [_to_device(model, each) for each in values]
        again = [_to_host(model, each) for each in _leaves(_called(model, on_device))]
        worst, bad = 0.0, False
        for output, want, host, there in zip(_outputs(contract), wanted, got, again, strict=True):
            off = distance(host, want, output.dtype)
            worst = max(worst, off)
            bad |= not off <= TOLERANCES.get(output.dtype, 0.0)
            bad |= host.tobytes() != there.tobytes()
        found.say(f"numbers at {_shown(sizes)}", f"off by {worst:.1e} from {against}", bad=bad)


def distance(got: np.ndarray, wanted: np.ndarray, dtype: str) -> float:
    """The largest difference over the largest absolute value; infinite where one alone is no number,
    and for other dtypes where any value differs."""
    if got.shape != wanted.shape:
        return math.inf
    if not got.size:
        return 0.0
    if dtype not in TOLERANCES:
        return 0.0 if np.array_equal(got, wanted) else math.inf
    left, right = (_wide(each, dtype) for each in (got, wanted))
    finite = np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return math.inf
    if not np.isfinite(left[finite]).all():
        return math.inf
    largest = np.abs(right[finite]).max(initial=0.0)
    return float(np.abs(left[finite] - right[finite]).max(initial=0.0) / (largest or 1.0))


def _wide(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        wide = bits.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64)
    return bits.astype(np.float64)


def save_expected(path: Path, source: str, folder: Path) -> None:
    """Write what eager (or without a source: the bundle on the CPU) gives at each point."""
    folder.mkdir(parents=True, exist_ok=True)
    model = load_bundle(path, device="cpu")
    module = _on_cpu(source) if source else None
    for number, sizes in enumerate(sizes_of(model.contract)):
        values = _values(model.contract, sizes)
        results = (
            _arrays(_called(model, values), model.contract)
            if module is None
            else _by_torch(module, values, model.contract)
        )
        file = folder / f"{path.stem}-{number}.npz"
        named: dict[str, Any] = {f"out{at}": each for at, each in enumerate(results)}
        np.savez(file, **named)
        click.echo(f"{file}: {_shown(sizes)}")


# --- states ---------------------------------------------------------------------------------------


def check_states(
    found: Checked, model: Model, points: Sequence[dict[str, int]], path: Path
) -> None:
    """Calls of one session at all points, twice, from numpy and from device tensors in turn,
    and what is kept afterwards, against a session of the bundle on the CPU."""
    if not model.states:
        return
    try:
        other = load_bundle(path, device="cpu").session()
    except TcexportError as error:
        found.say("states", f"nothing to hold them against ({error.code})", bad=True)
        return
    session, worst, bad = model.session(), 0.0, False
    contract = model.contract
    for number, sizes in enumerate([*points, *points]):
        values = _values(contract, sizes, number)
        wanted = _arrays(_called_on(other, contract, values), contract)
        if number % 2:
            there = [_to_device(model, each) for each in values]
            got = [_to_host(model, each) for each in _leaves(_called_on(session, contract, there))]
        else:
            got = _arrays(_called_on(session, contract, values), contract)
        pairs = list(zip(got, wanted, (each.dtype for each in _outputs(contract)), strict=True))
        kept, right = session.bits(), other.bits()
        pairs += [(kept[name].data, right[name].data, right[name].dtype) for name in right]
        for have, want, dtype in pairs:
            off = distance(have, want, dtype)
            worst = max(worst, off)
            bad |= not off <= TOLERANCES.get(dtype, 0.0)
    said = f"{2 * len(points)} calls of a session, off by {worst:.1e} from the bundle on the CPU"
    found.say("states", said, bad=bad)


# --- graphs ---------------------------------------------------------------------------------------


def check_graphs(
    found: Checked, model: Model, points: Sequence[dict[str, int]], path: Path, device: str
) -> Model:
    """The bundle with CUDA graphs: each point thrice, with other values each time. What replays give
    must be the bits of calls without, also once later calls were made, and while results are held."""
    recorded = load_bundle(path, device=device, cuda_graphs=0 if model.states else len(points))
    if model.states:
        found.say("graphs", "none: the model keeps state")
        return recorded
    for sizes in points:
        held, before = [], recorded.metrics.replays
        for seed in range(3):
            values = _values(model.contract, sizes, seed)
            there = [_to_device(model, each) for each in values]
            wanted = [_to_host(model, each) for each in _leaves(_called(model, there))]
            held.append((wanted, _leaves(_called(recorded, there))))
            found_on_host = _arrays(_called(recorded, values), model.contract)
            held.append((wanted, found_on_host))
        same = all(
            want.tobytes()
            == (got if isinstance(got, np.ndarray) else _to_host(model, got)).tobytes()
            for wanted, results in held
            for want, got in zip(wanted, results, strict=True)
        )
        replays = recorded.metrics.replays - before
        said = f"{replays} of 6 calls replayed, {'the same' if same else 'other'} bits as without"
        found.say(f"graphs at {_shown(sizes)}", said, bad=not same or replays != 4)
    return recorded


# --- refusals -------------------------------------------------------------------------------------


def check_refusals(found: Checked, model: Model, path: Path) -> None:
    """What cannot be served is refused, by a code and before anything runs."""
    for dim in model.contract.dims:
        if dim.hi is None:
            continue
        sizes = dict(next(sizes_of(model.contract)), **{dim.name: dim.hi + dim.step})
        try:
            _called(model, _values(model.contract, sizes))
        except TcexportError as error:
            found.say(f"{dim.name}={sizes[dim.name]}", error.code, bad=error.code[:3] != "TC3")
        except (ExprError, ValueError):
            continue  # no such input can be made
        else:
            found.say(f"{dim.name}={sizes[dim.name]}", "was served", bad=True)
    _refused(found, path, "cuda:99", "TC407")
    _refused(found, path, "cuda", "TC420", CUDA_VISIBLE_DEVICES="")


def _refused(found: Checked, path: Path, device: str, code: str, **environment: str) -> None:
    program = (
        f"import sys, {_PACKAGE} as tcexport\n"
        "try: tcexport.load(sys.argv[1], device=sys.argv[2])\n"
        "except tcexport.BundleError as error: print(error.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), device],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    said = done.stdout.strip() or done.stderr.strip()[-200:] or "was loaded"
    shown = " ".join([f"{name}={value!r}" for name, value in environment.items()] + [device])
    found.say(shown, said, bad=said != code)


# --- speed ----------------------------------------------------------------------------------------


def time_calls(
    found: Checked, model: Model, recorded: Model, sizes: dict[str, int], module: Any, end: float
) -> None:
    """Medians of the bundle, of its graphs and, with a source and torch, of eager, torch.compile and
    AOTInductor."""
    values = _values(model.contract, sizes)
    args, kwargs = call_of(model.contract, values)
    there = call_of(model.contract, [_to_device(model, each) for each in values])
    call = _callable(model)
    medians = {"bundle": _median(model, lambda: call(*there[0], **there[1]), end)}
    if not model.states:
        medians["with graphs"] = _median(recorded, lambda: recorded(*there[0], **there[1]), end)
    medians["bundle, from numpy"] = _median(model, lambda: call(*args, **kwargs), end)
    if module is not None:
        for name, run in _rivals(module, model.contract, values, end):
            medians[name] = _median(model, run, end)
    found.medians[_shown(sizes)] = medians
    ours = medians["bundle"]
    others = ", ".join(f"{name} {each / ours:.2f}" for name, each in medians.items())
    found.say(f"speed at {_shown(sizes)}", f"{ours:.3f} ms; over it: {others}")


def _median(model: Model, run: Callable[[], Any], end: float) -> float:
    """Milliseconds between two events around a call, the median; the calls are queued one by one."""
    assert model._gpu is not None
    device = model._gpu.device
    cudart = device.cudart
    events = [ctypes.c_void_p() for _ in range(2)]
    with device.current():
        for event in events:
            cudart.call("cudaEventCreate", ctypes.byref(event))
        for _ in range(3):
            run()
        times = []
        for number in range(CALLS):
            cudart.call("cudaDeviceSynchronize")
            cudart.call("cudaEventRecord", events[0], ctypes.c_void_p(0))
            run()
            cudart.call("cudaEventRecord", events[1], ctypes.c_void_p(0))
            cudart.call("cudaEventSynchronize", events[1])
            took = ctypes.c_float()
            cudart.call("cudaEventElapsedTime", ctypes.byref(took), *events)
            times.append(took.value)
            if number >= 4 and time.monotonic() > end:
                break
        for event in events:
            cudart.call("cudaEventDestroy", event)
    return statistics.median(times)


def _rivals(
    module: Any, contract: Contract, values: list[Any], end: float
) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch

    args, kwargs = call_of(contract, [_torch_of(each, "cuda") for each in values])

    def inference(function: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.inference_mode():
                return function(*args, **kwargs)

        return run

    yield "eager", inference(module)
    if time.monotonic() < end:
        yield "torch.compile", inference(torch.compile(module, dynamic=True))
    if time.monotonic() < end:
        with torch.inference_mode():
            program = torch.export.export(module, tuple(args), kwargs)
            package = torch._inductor.aoti_compile_and_package(program)
            yield "AOTInductor", inference(torch._inductor.aoti_load_package(package))


def check_memory(found: Checked, what: str, model: Model) -> None:
    """What it takes, and that it gives back what it does not need."""
    before = model.gpu_memory()
    given = model.release_memory()
    after = model.gpu_memory()
    assert before is not None and after is not None
    found.say(
        what,
        f"weights {before.weights} B, pool {before.pool} B of {before.limit} B, "
        f"{before.graphs} graphs with {before.graph_bytes} B, {given} B given back, "
        f"{after.free} B free of {after.total} B",
        bad=after.pool > after.limit or after.free < before.free or after.graphs > 0,
    )


# --- calls ----------------------------------------------------------------------------------------


def sizes_of(contract: Contract) -> Iterator[dict[str, int]]:
    """Up to `POINTS` points of the dims that inputs can be made for, from the lowest to the highest;
    at least one."""
    steps = [_steps(dim) for dim in contract.dims]
    seen: set[tuple[int, ...]] = set()
    for at in range(POINTS):
        values = tuple(each[at % len(each)] for each in steps)
        sizes = dict(zip((dim.name for dim in contract.dims), values, strict=True))
        if values in seen:
            continue
        seen.add(values)
        try:
            drawn_inputs(contract, sizes, 0)
        except (ExprError, ValueError):
            continue  # the contract's guards tie dims together
        yield sizes


def _steps(dim: Dim) -> list[int]:
    low = dim.lo if dim.lo else dim.lo + dim.step
    high = max(low, min(dim.hi if dim.hi is not None else _WIDEST, _WIDEST))
    spread = [
        low + (high - low) * at // (POINTS - 1) // dim.step * dim.step for at in range(POINTS)
    ]
    return list(dict.fromkeys(spread))


def _values(contract: Contract, sizes: dict[str, int], seed: int = 0) -> list[Any]:
    """The inputs, drawn: numpy arrays, TVM tensors for dtypes that numpy lacks, and fixed values."""
    drawn = drawn_inputs(contract, sizes, seed)
    values: list[Any] = []
    for index, item in enumerate(contract.inputs):
        if isinstance(item, Fixed):
            values.append(item.value)
            continue
        data, dtype = drawn[f"{index}"].data, item.dtype
        values.append(from_bits(data, dtype) if dtype in WITHOUT_NUMPY else data)
    return values


def _called(model: Model, values: list[Any]) -> Any:
    return _called_on(_callable(model), model.contract, values)


def _called_on(call: Callable[..., Any], contract: Contract, values: list[Any]) -> Any:
    args, kwargs = call_of(contract, values)
    return call(*args, **kwargs)


def _callable(model: Model) -> Callable[..., Any]:
    """The model, or a new session of one that keeps state."""
    return model.session() if model.states else model


def _shown(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes"


def _outputs(contract: Contract) -> list[TensorOutput]:
    return [each for each in contract.outputs if isinstance(each, TensorOutput)]


def _leaves(value: Any) -> list[Any]:
    """The tensors of a result, in the contract's order."""
    if isinstance(value, dict):
        return list(itertools.chain.from_iterable(map(_leaves, value.values())))
    if isinstance(value, (list, tuple)):
        return list(itertools.chain.from_iterable(map(_leaves, value)))
    return [value] if hasattr(value, "shape") else []


def _arrays(result: Any, contract: Contract) -> list[np.ndarray]:
    outputs = _outputs(contract)
    return [
        np.ascontiguousarray(
            each if isinstance(each, np.ndarray) else as_numpy_bits(each, output.dtype)
        )
        for each, output in zip(_leaves(result), outputs, strict=True)
    ]


def _to_device(model: Model, value: Any) -> Any:
    """A tensor of tvm_ffi's on the model's GPU; what is no tensor as it is."""
    if not hasattr(value, "__dlpack__"):
        return value
    assert model._gpu is not None
    device = model._gpu.device
    dtype = str(value.dtype)
    bits = as_numpy_bits(value, dtype)
    memory = device.empty(max(bits.nbytes, 1))
    with device.current():
        device.cudart.copy(memory.data_ptr(), bits.ctypes.data, bits.nbytes, 0)
        device.cudart.wait(0)
    return device.view(memory, bits.shape, dtype, 0)


def _to_host(model: Model, tensor: Any) -> np.ndarray:
    assert model._gpu is not None
    device = model._gpu.device
    array = np.empty(tuple(tensor.shape), bits_of(str(tensor.dtype)))
    with device.current():
        device.cudart.copy(array.ctypes.data, tensor.data_ptr(), array.nbytes, 0)
        device.cudart.wait(0)
    return array


# --- torch ----------------------------------------------------------------------------------------


def _on_cpu(source: str) -> Any:
    from ..exporter.source import load_source

    return load_source(source).module


def _on_gpu(source: str, device: str) -> Any:
    """The source's module on the GPU; None where torch cannot use it."""
    import torch

    if not torch.cuda.is_available():
        click.echo("    torch has no CUDA here: the source is left out")
        return None
    return _on_cpu(source).to(device)


def _torch_of(value: Any, device: Any) -> Any:
    import torch

    return torch.from_dlpack(value).to(device) if hasattr(value, "__dlpack__") else value


def _by_torch(module: Any, values: list[Any], contract: Contract) -> list[np.ndarray]:
    import torch

    module = copy.deepcopy(module)  # a call may change its state
    where = next(module.parameters(), torch.empty(0)).device
    args, kwargs = call_of(contract, [_torch_of(each, where) for each in values])
    with torch.inference_mode():
        result = module(*args, **kwargs)
    from_dlpack = load_ffi().from_dlpack
    return [
        as_numpy_bits(from_dlpack(each.cpu().contiguous()), output.dtype)
        for each, output in zip(_leaves(result), _outputs(contract), strict=True)
    ]


if __name__ == "__main__":
    main()
