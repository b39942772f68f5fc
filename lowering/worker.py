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


class Request(msgspec.Struct, frozen=True):
    """What is to be lowered, and where the files go; or ``only_survey``: which ops could be.
    ``own``: kernels for ops that are not torch's."""

    program: str
    targets: tuple[str, ...]
    workdir: str
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
        work = look if request.only_survey else run
        answer = work(Path(request.program), request.targets, workdir, request.own)
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
    program_path: Path,
    targets: tuple[str, ...],
    workdir: Path,
    own: tuple[OwnKernel, ...] = (),
) -> Answer:
    with stage("load compiler"):
        import torch

        from ..artifacts.weights import write_weights
        from . import converters  # noqa: F401  (registers them)
        from .elf import oldest_glibc
        from .graph import build
        from .link import find_linker, link
        from .memory import joined
        from .outputs import INTO
        from .pipeline import compile_for_gpu, compile_module
        from .states import kept, states
        from .weights import WeightStore, constants, record, weight_of

    linkers = {name: find_linker(target_named(name)) for name in targets}
    with stage("read the program"):
        program = torch.export.load(program_path)
        values = constants(program)
    held = kept(states(program))
    _refuse_state_on_gpu([row.name for row, _ in held], targets)
    store = WeightStore()
    graphs = {}
    with stage("convert"):
        for name in targets:
            graphs[name] = build(program, values, target_named(name), store, own)
    first = graphs[targets[0]]
    gpu = None
    for name, graph in graphs.items():
        wants = [
            (each.inputs, each.sizes, each.weights, each.asserted, each.states)
            for each in (graph, first)
        ]
        if wants[0] != wants[1] and not isinstance(target_named(name), GpuTarget):
            raise AssertionError(f"{name} wants other arguments than {targets[0]}")
    with stage("write weights"):
        tensors = {
            name: store.kept[name].value for graph in graphs.values() for name in graph.weights
        }
        tensors |= {row.initial: value for row, value in held if row.initial}
        write_weights(
            weights_path(workdir), {name: weight_of(value) for name, value in tensors.items()}
        )
        parameters = record(program, values, store)
    needs = []
    given: set[tuple[int, ...]] = set()
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
                executable = compile_for_gpu(graphs[name].module, target)
            with stage(f"compile for {name}"):
                packed = export_gpu_library(executable, target, tools, linkers[name], library)
            graph = graphs[name]
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
            compiled = compile_module(graphs[name].module, target, len(first.weights))
        given.add(compiled.given)
        memory.append(compiled.memory)
        with stage(f"link for {name}"):
            compiled.executable.export_library(
                str(library),
                fcompile=lambda output, objects, linker=linkers[name], **_: link(
                    linker, [Path(item) for item in objects], Path(output)
                ),
            )
        needs.append(oldest_glibc(library.read_bytes()))
    agreed = given.pop() if len(given) == 1 else ()
    return Answer(
        inputs=first.inputs,
        sizes=first.sizes,
        weights=first.weights,
        results=first.results,
        into=INTO if agreed else "",
        given=agreed,
        linker=", ".join(sorted({linker.version for linker in linkers.values()})),
        libc=max(needs, key=lambda version: [int(part) for part in version.split(".")]),
        indexing=first.indexing,
        asserted=first.asserted,
        memory=joined(memory) if memory else None,
        ops=first.ops,
        states=tuple(row for row, _ in held),
        parameters=parameters,
        gpu=gpu,
    )


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
