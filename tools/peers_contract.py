"""Who answers a call that the exported model cannot serve? The same violating calls through torch,
AOTInductor, ExecuTorch, ONNX Runtime and tcexport, each in processes of their own.

    python -m tcexport.tools.peers_contract [--runtime NAME …] [--case NAME …] [--json FILE]

A call is *silent* where the runtime answers although eager raises or answers otherwise, *refused*
where it raises, *crashed* where the process ends (or hangs). *right* is eager's own answer, and
*unusable* a call that the runtime has no way to be given, or a model that it does not build.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

BUILD_SECONDS, CALL_SECONDS = 600, 120
OUTCOMES = ("silent", "refused", "crashed", "right", "unusable")
RUNTIMES = (
    "ep.module()",
    "AOTInductor",
    "AOTInductor, checks on",
    "ExecuTorch",
    "ONNX Runtime",
    "tcexport",
)
_NEEDS = {"ONNX Runtime": ("onnxruntime", "onnxscript"), "ExecuTorch": ("executorch",)}


@click.command()
@click.option("--runtime", "runtimes", multiple=True, type=click.Choice(RUNTIMES))
@click.option("--case", "names", multiple=True, help="Only these models.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write every outcome here.")
def command(runtimes: tuple[str, ...], names: tuple[str, ...], file: Path | None) -> None:
    """Print how each runtime answers calls outside of what was exported."""
    from .peers_contract_cases import CASES

    cases = [case for case in CASES if not names or case.name in names]
    chosen = [each for each in runtimes or RUNTIMES if _installed(each)]
    found: dict[str, dict[str, list[str]]] = {}
    for runtime in chosen:
        found[runtime] = {}
        for case in cases:
            outcomes = _outcomes(runtime, case.name, len(case.calls))
            found[runtime][case.name] = outcomes
            click.echo(f"{runtime}: {case.name}: {', '.join(outcomes)}", err=True)
    click.echo(_table(found))
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n")


def _installed(runtime: str) -> bool:
    needed = _NEEDS.get(runtime, ("torch",))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    for name in missing:
        click.echo(f"{runtime} is left out: {name} is not installed", err=True)
    return not missing


def _table(found: dict[str, dict[str, list[str]]]) -> str:
    lines = [["runtime", *OUTCOMES, "silent of usable"]]
    for runtime, by_case in found.items():
        counts = Counter(outcome.split(":")[0] for each in by_case.values() for outcome in each)
        usable = sum(counts.values()) - counts["unusable"]
        cells = [str(counts[outcome]) for outcome in OUTCOMES]
        lines.append([runtime, *cells, f"{counts['silent'] + counts['crashed']}/{usable}"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join(padded)


def _outcomes(runtime: str, case: str, calls: int) -> list[str]:
    """Build in one process and call in others: after a crash, a new one goes on with the next call."""
    with tempfile.TemporaryDirectory() as folder:
        status, said = _child(BUILD_SECONDS, "build", runtime, case, folder)
        if status != 0:
            return [f"unusable: {said}"] * calls
        log = Path(folder, "outcomes")
        log.touch()
        while len(done := log.read_text().splitlines()) < calls:
            status, said = _child(CALL_SECONDS, "call", runtime, case, folder, str(len(done)))
            if status > 0 and not Path(folder, "loaded").exists():
                return [f"unusable: {said}"] * calls
            if len(log.read_text().splitlines()) < calls:
                with log.open("a") as file:
                    file.write(f"crashed: status {status}\n")
        return done


def _child(seconds: int, *arguments: str) -> tuple[int, str]:
    environment = dict(os.environ)
    if arguments[1] == "AOTInductor, checks on":
        environment["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
    command_line = [sys.executable, "-m", f"{__package__}.peers_contract", "--child", *arguments]
    try:
        done = subprocess.run(
            command_line, capture_output=True, text=True, timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {seconds} s"
    lines = done.stderr.strip().splitlines() or [""]
    return done.returncode, lines[-1][:200]


# --- in the child processes -----------------------------------------------------------------------


def _run_child(stage: str, runtime: str, name: str, folder: str, start: str = "0") -> None:
    import torch

    from .peers_contract_cases import CASES

    case = next(case for case in CASES if case.name == name)
    torch.manual_seed(0)
    module = case.make().eval()
    if stage == "build":
        with torch.no_grad():
            _BUILD[runtime](module, case, Path(folder))
        return
    call = _LOAD[runtime](Path(folder), case)
    Path(folder, "loaded").touch()
    with open(Path(folder, "outcomes"), "a") as log:
        for arguments in case.calls[int(start) :]:
            log.write(_outcome(module, call, arguments) + "\n")
            log.flush()


def _outcome(module: Any, call: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    import torch

    with torch.no_grad():
        try:
            want = module(*arguments)
        except Exception:  # that eager fails is an answer, too
            want = None
        try:
            got = call(*arguments)
        except NotImplementedError:
            return "unusable: no such argument"
        except Exception as error:  # every runtime has errors of its own
            text = str(error).strip() or type(error).__name__
            return f"refused: {text.splitlines()[0][:120]}"
    return "right" if want is not None and _equal(got, want) else "silent"


def _equal(got: Any, want: Any) -> bool:
    import torch

    if isinstance(want, (tuple, list)):
        same = isinstance(got, (tuple, list)) and len(got) == len(want)
        return same and all(map(_equal, got, want))
    got = torch.as_tensor(got)
    fits = got.shape == want.shape and got.dtype == want.dtype
    return fits and torch.allclose(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def _program(module: Any, case: Any) -> Any:
    """What torch.export makes of the model, its axes free in the ranges."""
    import torch

    dim = torch.export.Dim
    shapes = tuple(
        {
            axis: dim.AUTO(min=case.ranges[part][0], max=case.ranges[part][1])
            if (part := _only_dim(name)) == name
            else dim.AUTO
            for axis, name in enumerate(names)
            if name is not None
        }
        if names is not None
        else None
        for names in case.axes
    )
    return torch.export.export(module, case.example, dynamic_shapes=shapes)


def _only_dim(name: str) -> str:
    return next(each for each in name if each.isalpha())


def _build_program(module: Any, case: Any, folder: Path) -> None:
    import torch

    torch.export.save(_program(module, case), folder / "model.pt2")


def _load_program(folder: Path, case: Any) -> Callable[..., Any]:
    import torch

    module: Callable[..., Any] = torch.export.load(folder / "model.pt2").module()
    return module


def _build_aoti(module: Any, case: Any, folder: Path) -> None:
    import torch

    torch._inductor.aoti_compile_and_package(
        _program(module, case), package_path=str(folder / "model.pt2")
    )


def _load_aoti(folder: Path, case: Any) -> Callable[..., Any]:
    import torch

    package: Callable[..., Any] = torch._inductor.aoti_load_package(str(folder / "model.pt2"))
    return package


def _build_executorch(module: Any, case: Any, folder: Path) -> None:
    from executorch.exir import to_edge_transform_and_lower

    program = to_edge_transform_and_lower(_program(module, case)).to_executorch()
    (folder / "model.pte").write_bytes(program.buffer)


def _load_executorch(folder: Path, case: Any) -> Callable[..., Any]:
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(folder / "model.pte").load_method("forward")

    def call(*arguments: Any) -> Any:
        results = method.execute(list(arguments))
        return tuple(results) if len(results) > 1 else results[0]

    return call


def _build_onnx(module: Any, case: Any, folder: Path) -> None:
    import torch

    with contextlib.redirect_stdout(sys.stderr):
        program = torch.onnx.export(_program(module, case), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(folder / "model.onnx"))


def _load_onnx(folder: Path, case: Any) -> Callable[..., Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]

    def call(*arguments: Any) -> Any:
        import torch

        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        plain = [each for each in arguments if not isinstance(each, torch.Tensor)]
        fixed = [each for each in case.example if not isinstance(each, torch.Tensor)]
        if len(tensors) != len(names) or any(a is not b for a, b in zip(plain, fixed, strict=True)):
            raise NotImplementedError
        feeds = {name: each.numpy() for name, each in zip(names, tensors, strict=True)}
        results = session.run(None, feeds)
        return results if len(results) > 1 else results[0]

    return call


def _build_ours(module: Any, case: Any, folder: Path) -> None:
    import inspect

    from ..exporter.export import export

    names = list(inspect.signature(module.forward).parameters)
    axes = {name: axes for name, axes in zip(names, case.axes, strict=True) if axes}
    export(
        module, case.example, axes=axes, dynamic=case.ranges, out=folder / "model.tcpkg",
        targets=("cpu:x86-64-v3",), narrow=True,
    )  # fmt: skip


def _load_ours(folder: Path, case: Any) -> Callable[..., Any]:
    from ..runtime import load

    return load(folder / "model.tcpkg")


_BUILD: dict[str, Callable[[Any, Any, Path], None]] = {
    "ep.module()": _build_program,
    "AOTInductor": _build_aoti,
    "AOTInductor, checks on": _build_aoti,
    "ExecuTorch": _build_executorch,
    "ONNX Runtime": _build_onnx,
    "tcexport": _build_ours,
}
_LOAD: dict[str, Callable[[Path, Any], Callable[..., Any]]] = {
    "ep.module()": _load_program,
    "AOTInductor": _load_aoti,
    "AOTInductor, checks on": _load_aoti,
    "ExecuTorch": _load_executorch,
    "ONNX Runtime": _load_onnx,
    "tcexport": _load_ours,
}


def main(arguments: Sequence[str]) -> None:
    """Run the command, or, with ``--child``, one of its processes."""
    if arguments[:1] == ["--child"]:
        _run_child(*arguments[1:])
    else:
        command(list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
