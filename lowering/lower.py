"""`lower`: a traced program to binaries, in a child process."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from torch._export.serde.serialize import _SYM_OPS, SerializeError
from torch.utils import _pytree as pytree

from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.logs import log
from . import compilers
from .answer import (
    Answer,
    Function,
    Made,
    Request,
    Surveyed,
    answer_path,
    library_path,
    weights_path,
)
from .locations import user_location
from .own_ops import OwnKernel, put_in
from .targets import CPU_TARGETS, target_named


class Lowered(Made, frozen=True, kw_only=True):
    """The binaries of a program: the weights that all of them take, and the library of each target."""

    weights_file: Path
    libraries: dict[str, Path]


def lower(
    program: torch.export.ExportedProgram,
    targets: tuple[str, ...],
    workdir: Path,
    progress: Callable[[str, float | None], None],
    own: tuple[OwnKernel, ...] = (),
    *,
    others: Sequence[torch.export.ExportedProgram] = (),
    functions: Sequence[Function] = (Function(),),
) -> Lowered:
    """Compile a program for some targets, by the names that `targets.target_named` knows.

    Args:
        program: one that `decompose` gave.
        others: further programs of the same model, for functions to be of.
        functions: what each library holds; the first one is ``main``.
        workdir: an existing folder for the files; what the answer names lies in it.
        progress: told the name of each stage where it begins (None), and its seconds where it ends.
        own: kernels for ops that are not torch's.

    Raises:
        ExportError: an unknown target (TC506), no linker (TC505), no CUDA compiler (TC530), ops that
            are not supported (TC501), or a compiler that failed (TC502, TC503).
    """
    try:
        for name in targets:
            target_named(name)
    except ValueError as error:
        known = ", ".join([*CPU_TARGETS, "cuda:sm_…"])
        what = str(error)
        raise ExportError(Diagnostic("TC506", what, notes=(f"known targets: {known}",))) from None
    if not targets:
        raise ExportError(Diagnostic("TC506", "no target is named"))
    workdir = workdir.resolve()
    programs = (program, *others)
    paths = _paths(workdir, len(programs))
    request = Request(paths, targets, str(workdir), tuple(functions), own=own)
    answer = _asked(programs, request, progress)
    if answer.made is None:
        raise ExportError(answer.errors)
    return Lowered(
        **msgspec.structs.asdict(answer.made),
        weights_file=weights_path(workdir),
        libraries={name: library_path(workdir, name) for name in targets},
    )


def _paths(workdir: Path, count: int) -> tuple[str, ...]:
    return tuple(str(workdir / f"program{number or ''}.pt2") for number in range(count))


def survey(
    programs: Sequence[torch.export.ExportedProgram],
    targets: tuple[str, ...],
    workdir: Path,
    progress: Callable[[str, float | None], None],
    own: tuple[OwnKernel, ...] = (),
    *,
    functions: Sequence[Function] = (Function(),),
) -> Surveyed:
    """What `lower` would say of programs: converted as there, by the same code, and not compiled.

    Returns:
        the ops of the first program for the first target; refusals of all.

    Raises:
        ExportError: TC502, TC503, as `lower`.
    """
    workdir = workdir.resolve()
    paths = _paths(workdir, len(programs))
    request = Request(paths, targets, str(workdir), tuple(functions), only_survey=True, own=own)
    answer = _asked(programs, request, progress)
    if answer.surveyed is None:
        raise ExportError(answer.errors)
    return answer.surveyed


def _asked(
    programs: Sequence[torch.export.ExportedProgram],
    request: Request,
    progress: Callable[[str, float | None], None],
) -> Answer:
    """What the compiler's process answers."""
    workdir = Path(request.workdir)
    for number, (program, path) in enumerate(zip(programs, request.programs, strict=True)):
        with _flat(program), put_in(program, () if number else request.own):
            _save(program, path)
    request_path = workdir / "request.json"
    request_path.write_bytes(msgspec.json.encode(request))
    answer_path(workdir).unlink(missing_ok=True)
    _run_worker(request_path, progress)
    answer = msgspec.json.decode(answer_path(workdir).read_bytes(), type=Answer)
    listener = log("lowering")
    found = answer.made or answer.surveyed
    if listener is not None and found is not None:
        for row in found.ops:
            listener.info("%s", row)
    return answer


def _save(program: torch.export.ExportedProgram, path: str) -> None:
    """Torch saves few functions of numbers; of another one, TC211 with the line."""
    try:
        torch.export.save(program, path)
    except SerializeError as error:
        for node in program.graph.nodes:
            number = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))
            known = isinstance(node.target, torch._ops.OpOverload) or node.target in _SYM_OPS
            if node.op == "call_function" and number and not known:
                raise ExportError(_unsaved(node)) from error
        raise


def _unsaved(node: torch.fx.Node) -> Diagnostic:
    name = getattr(node.target, "__name__", str(node.target))
    return Diagnostic(
        "TC211",
        f"the graph computes a size by {name}(), which torch can't save in a program",
        location=user_location(node.meta.get("stack_trace")),
        tries=(
            "compute it of integers: (2 * a + b) // (2 * b) for a / b, rounded half up"
            if node.target is round
            else "compute it of integers, or of a tensor",
        ),
    )


@contextmanager
def _flat(program: torch.export.ExportedProgram) -> Iterator[None]:
    """While active, the program takes and returns flat tuples: the graph is flat already, and classes
    of the user's (named tuples, the outputs of transformers) can't be loaded in another process.
    Torch's own guards speak of the arguments as they were; the contract has replaced them."""
    entry = program.module_call_graph[0]
    signature = entry.signature
    assert signature is not None
    in_spec = pytree.tree_structure((tuple(range(signature.in_spec.num_leaves)), {}))
    out_spec = pytree.tree_structure(tuple(range(signature.out_spec.num_leaves)))
    entry.signature = dataclasses.replace(
        signature, in_spec=in_spec, out_spec=out_spec, forward_arg_names=None
    )
    guards, program._guards_code = program._guards_code, []
    example, program._example_inputs = program._example_inputs, None
    try:
        yield
    finally:
        entry.signature = signature
        program._guards_code = guards
        program._example_inputs = example


def _run_worker(request_path: Path, progress: Callable[[str, float | None], None]) -> None:
    listener = log("lowering")

    def told(stage: str, seconds: float | None) -> None:
        progress(stage, seconds)
        if listener is not None and seconds is not None:
            listener.info("%s: %.1f s", stage, seconds)

    status, stderr = compilers.run(request_path, told)
    if status == 0 and answer_path(request_path.parent).exists():
        return
    said = stderr.decode(errors="replace").splitlines()[-20:]
    raise ExportError(
        Diagnostic("TC503", f"the compiler's process {_ending(status)}", notes=tuple(said))
    )


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
