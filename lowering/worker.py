"""The process that lowers programs: ``python -m tcexport.lowering.worker``, started by `compilers`.

It imports the compiler, and forks for each order that comes by stdin: a crash of TVM or of LLVM ends
the fork only. Progress goes to stdout, one JSON line for each stage; the answer, or the diagnostics,
into a file.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..artifacts.errors import Diagnostic, ExportError
from .answer import (
    Answer,
    Called,
    Function,
    Made,
    OnGpu,
    Request,
    Surveyed,
    answer_path,
    library_path,
    weights_path,
)
from .imports import lasting_imports
from .messages import Ended, Order, Progress
from .own_ops import OwnKernel
from .targets import GpuTarget, target_named


@contextmanager
def stage(name: str) -> Iterator[None]:
    _tell(Progress(name, None))
    start = time.monotonic()
    yield
    _tell(Progress(name, round(time.monotonic() - start, 3)))


def _tell(what: Progress | Ended) -> None:
    print(msgspec.json.encode(what).decode(), flush=True)


# A process that holds the compiler has 250 MB of its own, and is started in seconds.
IDLE_SECONDS = 120


def serve() -> None:
    """Do what comes by stdin, an order after another, until there is nobody who could send one, or
    nobody has for a while."""
    folder = Path.cwd()
    with lasting_imports():
        _load()
    if threading.active_count() != 1 or len(os.listdir("/proc/self/task")) != 1:
        raise AssertionError("the compiler starts threads where it is imported: no fork has them")
    while line := _next_order():
        order = msgspec.json.decode(line, type=Order)
        child = os.fork()
        if child == 0:
            _follow(order)
        _tell(Ended(_status_of(child)))
    shutil.rmtree(folder, ignore_errors=True)


def _next_order() -> bytes:
    """A line; b"" where none comes."""
    # One is written when the one before is done: there is never a second one in the buffer.
    ready, _, _ = select.select([sys.stdin], [], [], IDLE_SECONDS)
    return sys.stdin.buffer.readline() if ready else b""


def _follow(order: Order) -> None:
    """In a fork, which ends here."""
    status = 1
    try:
        errors = os.open(order.stderr, os.O_WRONLY | os.O_APPEND)
        os.dup2(errors, sys.stderr.fileno())
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, sys.stdin.fileno())
        os.environb.clear()
        os.environb.update(order.environment)
        os.chdir(Path(order.request).parent)
        main(order.request)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _status_of(child: int) -> int:
    """How a fork ended. Where nobody waits for it any more, it is ended with all that it started."""
    over = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([over, sys.stdin], [], [])
        if over not in ready:
            os.killpg(0, signal.SIGKILL)
    finally:
        os.close(over)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _load() -> None:
    """Import what any order needs."""

    import torch.export.pt2_archive._package  # noqa: F401  (what torch.export.load imports)

    from ..artifacts import weights  # noqa: F401
    from . import converters, elf, library, link, memory, pipeline, reading, states  # noqa: F401


def main(request_path: str) -> None:
    request = msgspec.json.decode(Path(request_path).read_bytes(), type=Request)
    workdir = Path(request.workdir)
    try:
        programs = tuple(Path(each) for each in request.programs)
        if request.only_survey:
            answer = Answer(
                surveyed=look(programs, request.targets, request.functions, request.own)
            )
        else:
            made = run(programs, request.targets, workdir, request.functions, request.own)
            answer = Answer(made=made)
    except ExportError as error:
        answer = Answer(errors=error.diagnostics)
    answer_path(workdir).write_bytes(msgspec.json.encode(answer))


def run(
    programs: tuple[Path, ...],
    targets: tuple[str, ...],
    workdir: Path,
    functions: tuple[Function, ...] = (Function(),),
    own: tuple[OwnKernel, ...] = (),
) -> Made:
    """Compile the functions of some programs for some targets, into files in ``workdir``."""
    with stage("load compiler"):
        from ..artifacts.weights import write_weights
        from . import converters  # noqa: F401  (registers them)
        from .library import build_all
        from .link import find_linker, link, oldest_system
        from .memory import joined
        from .pipeline import compile_for_gpu, compile_module
        from .reading import read_program
        from .states import kept, states
        from .weights import WeightStore, constants, record, shared_constants, weight_of

    linkers = {name: find_linker(target_named(name)) for name in targets}
    with stage("read the program"):
        loaded = [read_program(path) for path in programs]
        values = shared_constants([constants(program, private=True) for program in loaded])
    held = kept(states(loaded[0]))
    _refuse_draws_on_gpu([row.name for row, _ in held], targets)
    store = WeightStore()
    libraries = {}
    with stage("convert"):
        for name in targets:
            target = target_named(name)
            libraries[name] = build_all(loaded, values, functions, target, store, own)
    on_cpu = [name for name in targets if not isinstance(target_named(name), GpuTarget)]
    called = libraries[(on_cpu or list(targets))[0]].functions
    gpu = None
    _refuse_other_states([[row.name for row in states(each)] for each in loaded])
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
    needs = {}
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
            gpu = OnGpu(name, libraries[name].functions, packed.images, packed.kernels)
            needs[name] = oldest_system(library.read_bytes(), linkers[name].system)
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
            needs[name] = oldest_system(library.read_bytes(), linkers[name].system)
    if given:
        called = tuple(_with_given(each, [every[each.name] for every in given]) for each in called)
        called = tuple(
            msgspec.structs.replace(each, memory=joined([every[each.name] for every in memory]))
            for each in called
        )
    return Made(
        functions=called,
        linker=", ".join(sorted({linker.version for linker in linkers.values()})),
        libc=needs,
        ops=libraries[targets[0]].ops,
        states=tuple(row for row, _ in held),
        parameters=parameters,
        gpu=gpu,
    )


def _with_given(called: Called, given: list[tuple[int, ...]]) -> Called:
    """With the function that takes memory for results, where all targets have the same one."""
    from .outputs import into

    first = given[0]
    if not first or any(other != first for other in given):
        return called
    return msgspec.structs.replace(called, into=into(called.name), given=first)


def _refuse_other_states(written: Sequence[Sequence[str]]) -> None:
    if any(names != written[0] for names in written):
        raise ExportError(
            Diagnostic(
                "TC224",
                "the arms of a branch on sizes write to different buffers",
                tries=("write to the same buffers in every arm", "export without --cover"),
            )
        )


def _refuse_draws_on_gpu(states: Sequence[str], targets: tuple[str, ...]) -> None:
    from .draws import GENERATOR

    on_gpu = [name for name in targets if isinstance(target_named(name), GpuTarget)]
    if on_gpu and GENERATOR in states:
        raise ExportError(
            Diagnostic(
                "TC501",
                f"{on_gpu[0]}: the model draws random numbers, which GPU code cannot do yet",
                tries=(
                    "take the random tensor as an input: def forward(self, x, noise)",
                    "--target cpu",
                ),
            )
        )


def look(
    programs: tuple[Path, ...],
    targets: tuple[str, ...],
    functions: tuple[Function, ...] = (Function(),),
    own: tuple[OwnKernel, ...] = (),
) -> Surveyed:
    """Convert every function, and compile nothing: for the first CPU and for the GPU, as what can be
    lowered does not depend on the level."""
    with stage("load compiler"):
        from . import converters  # noqa: F401  (registers them)
        from .graph import survey
        from .reading import read_program
        from .states import states
        from .weights import constants

    with stage("read the program"):
        loaded = [read_program(path) for path in programs]
        values = [constants(program, private=True) for program in loaded]
    written = [[row.name for row in states(each)] for each in loaded]
    _refuse_other_states(written)
    _refuse_draws_on_gpu(written[0], targets)
    kinds = {type(target_named(name)): target_named(name) for name in reversed(targets)}
    with stage("convert"):
        found = [
            survey(loaded[each.program], values[each.program], target, own, each.sizes)
            for target in sorted(kinds.values(), key=lambda each: isinstance(each, GpuTarget))
            for each in functions
        ]
    return Surveyed(
        found[0].ops,
        tuple(dict.fromkeys(error for each in found for error in each.errors)),
        tuple(looked for each in found[: len(functions)] for looked in each.functions),
    )


if __name__ == "__main__":
    serve()
