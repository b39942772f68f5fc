"""The child process that lowers a program: ``python -m tcexport.lowering.worker REQUEST``.

A crash of TVM or of LLVM ends this process only. Progress goes to stdout, one JSON line for each
stage; the answer, or the diagnostics, into a file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.manifest import Parameters
from ..artifacts.states import StateTensor
from .asserted import Asserted
from .own_ops import OwnKernel
from .survey import OpUse
from .targets import GpuTarget, target_named
from .variants import ENTRY


class Function(msgspec.Struct, frozen=True):
    """A function of the library: of ``program`` (a place in the request), with ``sizes`` of torch's
    symbols, by name, as numbers. A program's own, without any, comes before those with."""

    name: str = ENTRY
    program: int = 0
    sizes: dict[str, int] = {}


class Request(msgspec.Struct, frozen=True):
    """What is to be lowered, and where the files go; or ``only_survey``: which ops could be.
    ``own``: kernels for ops that are not torch's."""

    programs: tuple[str, ...]
    targets: tuple[str, ...]
    workdir: str
    functions: tuple[Function, ...] = (Function(),)
    only_survey: bool = False
    own: tuple[OwnKernel, ...] = ()


class Progress(msgspec.Struct, frozen=True):
    """A stage that begins (None), or that is over, and how many seconds it took."""

    stage: str
    seconds: float | None


class OnGpu(msgspec.Struct, frozen=True):
    """How the function for a GPU is called (as in `Lowered`), and what its library holds: machine
    code and PTX by architecture, and kernels by name."""

    target: str
    inputs: tuple[int, ...]
    sizes: tuple[str, ...]
    weights: tuple[str, ...]
    results: int
    images: tuple[str, ...]
    kernels: tuple[str, ...]


class Called(msgspec.Struct, frozen=True):
    """How a function is called, and what its contract must hold: see `Lowered`."""

    name: str
    inputs: tuple[int, ...]
    sizes: tuple[str, ...]
    states: tuple[str, ...]
    weights: tuple[str, ...]
    results: int
    indexing: tuple[str, ...]
    asserted: tuple[Asserted, ...]
    into: str = ""
    given: tuple[int, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """The fields of `Lowered`, or why there is none."""

    inputs: tuple[int, ...] = ()
    sizes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    results: int = 0
    into: str = ""
    given: tuple[int, ...] = ()
    linker: str = ""
    libc: str = ""
    indexing: tuple[str, ...] = ()
    asserted: tuple[Asserted, ...] = ()
    ops: tuple[OpUse, ...] = ()
    states: tuple[StateTensor, ...] = ()
    parameters: Parameters | None = None
    memory: tuple[Any, ...] | None = None
    gpu: OnGpu | None = None
    functions: tuple[Called, ...] = ()
    errors: tuple[Diagnostic, ...] = ()


@contextmanager
def stage(name: str) -> Iterator[None]:
    _tell(Progress(name, None))
    start = time.monotonic()
    yield
    _tell(Progress(name, round(time.monotonic() - start, 3)))


def _tell(progress: Progress) -> None:
    print(msgspec.json.encode(progress).decode(), flush=True)


def main(request_path: str) -> None:
    request = msgspec.json.decode(Path(request_path).read_bytes(), type=Request)
    workdir = Path(request.workdir)
    try:
        programs = tuple(Path(each) for each in request.programs)
        if request.only_survey:
            answer = look(programs[0], request.targets, workdir, request.own)
        else:
            answer = run(programs, request.targets, workdir, request.functions, request.own)
    except ExportError as error:
        answer = Answer(errors=error.diagnostics)
    answer_path(workdir).write_bytes(msgspec.json.encode(answer))


def answer_path(workdir: Path) -> Path:
    return workdir / "answer.json"


def weights_path(workdir: Path) -> Path:
    return workdir / "weights.safetensors"


def library_path(workdir: Path, target: str) -> Path:
    return workdir / target_named(target).folder / "model.so"


def run(
    programs: tuple[Path, ...],
    targets: tuple[str, ...],
    workdir: Path,
    functions: tuple[Function, ...] = (Function(),),
    own: tuple[OwnKernel, ...] = (),
) -> Answer:
    with stage("load compiler"):
        import torch

        from ..artifacts.weights import write_weights
        from . import converters  # noqa: F401  (registers them)
        from .elf import oldest_glibc
        from .library import build_all
        from .link import find_linker, link
        from .memory import joined
        from .pipeline import compile_for_gpu, compile_module
        from .states import kept, states
        from .weights import WeightStore, constants, record, shared_constants, weight_of

    linkers = {name: find_linker(target_named(name)) for name in targets}
    with stage("read the program"):
        loaded = [torch.export.load(path) for path in programs]
        values = shared_constants([constants(program) for program in loaded])
    held = kept(states(loaded[0]))
    _refuse_state_on_gpu([row.name for row, _ in held], targets)
    store = WeightStore()
    libraries = {}
    with stage("convert"):
        for name in targets:
            target = target_named(name)
            wanted = functions[:1] if isinstance(target, GpuTarget) else functions
            libraries[name] = build_all(loaded, values, wanted, target, store, own)
    on_cpu = [name for name in targets if not isinstance(target_named(name), GpuTarget)]
    called = libraries[(on_cpu or list(targets))[0]].functions
    gpu = None
    written = [[row.name for row in states(each)] for each in loaded]
    if any(names != written[0] for names in written):
        raise ExportError(
            Diagnostic(
                "TC224",
                "the arms of a branch on sizes write to different buffers",
                tries=("write to the same buffers in every arm", "export without --cover"),
            )
        )
    for name in on_cpu:
        if libraries[name].functions != called:
            raise AssertionError(f"{name} wants other arguments than {targets[0]}")
    with stage("write weights"):
        tensors = {
            weight: store.kept[weight].value
            for each in (called, *(built.functions for built in libraries.values()))
            for function in each
            for weight in function.weights
        }
        tensors |= {row.initial: value for row, value in held if row.initial}
        write_weights(
            weights_path(workdir), {name: weight_of(value) for name, value in tensors.items()}
        )
        # What arms of a branch share is known of each of them alone.
        parameters = record(loaded[0], values[0], store) if len(loaded) == 1 else None
    needs = []
    given: list[dict[str, tuple[int, ...]]] = []
    memory = []
    for name in targets:
        library = library_path(workdir, name)
        library.parent.mkdir(parents=True, exist_ok=True)
        target = target_named(name)
        if isinstance(target, GpuTarget):
            from .cuda.pack import export_gpu_library, without_a_device
            from .cuda.toolchain import find_toolchain

            tools = find_toolchain()
            with stage(f"make kernels for {name}"), without_a_device():
                executable = compile_for_gpu(libraries[name].module, target)
            with stage(f"compile for {name}"):
                packed = export_gpu_library(executable, target, tools, linkers[name], library)
            graph = libraries[name].functions[0]
            gpu = OnGpu(
                name,
                graph.inputs,
                graph.sizes,
                graph.weights,
                graph.results,
                packed.images,
                packed.kernels,
            )
            needs.append(oldest_glibc(library.read_bytes()))
            continue
        with stage(f"compile for {name}"):
            weights = {each.name: len(each.weights) for each in called}
            compiled = compile_module(libraries[name].module, target, weights)
        given.append(compiled.given)
        memory.append(compiled.memory)
        with stage(f"link for {name}"):
            compiled.executable.export_library(
                str(library),
                fcompile=lambda output, objects, linker=linkers[name], **_: link(
                    linker, [Path(item) for item in objects], Path(output)
                ),
            )
        needs.append(oldest_glibc(library.read_bytes()))
    if given:
        called = tuple(_with_given(each, [every[each.name] for every in given]) for each in called)
    main = called[0]
    return Answer(
        inputs=main.inputs,
        sizes=main.sizes,
        weights=main.weights,
        results=main.results,
        into=main.into,
        given=main.given,
        linker=", ".join(sorted({linker.version for linker in linkers.values()})),
        libc=max(needs, key=lambda version: [int(part) for part in version.split(".")]),
        indexing=main.indexing,
        asserted=main.asserted,
        memory=joined(memory) if memory else None,
        ops=libraries[targets[0]].ops,
        states=tuple(row for row, _ in held),
        parameters=parameters,
        gpu=gpu,
        functions=called,
    )


def _with_given(called: Called, given: list[tuple[int, ...]]) -> Called:
    """With the function that takes memory for results, where all targets have the same one."""
    from .outputs import into

    first = given[0]
    if not first or any(other != first for other in given):
        return called
    return msgspec.structs.replace(called, into=into(called.name), given=first)


def _refuse_state_on_gpu(names: list[str], targets: tuple[str, ...]) -> None:
    on_gpu = [name for name in targets if isinstance(target_named(name), GpuTarget)]
    if names and on_gpu:
        raise ExportError(
            Diagnostic(
                "TC501",
                f"{on_gpu[0]}: the model keeps state from call to call ({', '.join(names)}), "
                "which GPU code cannot do yet",
                tries=("--target cpu",),
            )
        )


def look(
    program_path: Path,
    targets: tuple[str, ...],
    workdir: Path,
    own: tuple[OwnKernel, ...] = (),
) -> Answer:
    """Convert the program for the first target, and compile nothing."""
    with stage("load compiler"):
        import torch

        from . import converters  # noqa: F401  (registers them)
        from .graph import survey
        from .survey import refusals
        from .weights import constants

    with stage("read the program"):
        program = torch.export.load(program_path)
        values = constants(program)
    with stage("convert"):
        found = survey(program, values, target_named(targets[0]), own)
    return Answer(
        ops=found.ops,
        indexing=found.indexing,
        asserted=found.asserted,
        errors=refusals(found.ops),
    )


if __name__ == "__main__":
    main(sys.argv[1])
