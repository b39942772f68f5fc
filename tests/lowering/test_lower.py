"""The whole way: `lower` in its child process, its refusals, its promises."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tcexport.artifacts.errors import ExportError
from tcexport.artifacts.weights import read_weights
from tcexport.lowering import generator
from tcexport.lowering.context import constant_tensor
from tcexport.lowering.converters.registry import CONVERTERS
from tcexport.lowering.graph import build
from tcexport.lowering.lower import Lowered, lower
from tcexport.lowering.targets import CPU_TARGETS
from tcexport.lowering.tensor import Constant
from tcexport.lowering.weights import WeightStore, constants

from .conftest import TARGET, trace


def lowered(program: torch.export.ExportedProgram, folder: Path) -> Lowered:
    folder.mkdir(exist_ok=True)
    return lower(program, (TARGET,), folder, lambda stage, seconds: None)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.second(torch.relu(self.first(x))) + self.offset).softmax(-1)


def test_two_lowerings_give_equal_bytes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = trace(Mlp().eval(), (torch.randn(3, 5, 8),))
    stages: list[str] = []

    def digests(folder: Path) -> tuple[str, str]:
        folder.mkdir()
        result = lower(program, (TARGET,), folder, lambda stage, seconds: stages.append(stage))
        files = (result.libraries[TARGET], result.weights_file)
        return tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)

    assert digests(tmp_path / "a") == digests(tmp_path / "longer-name")
    assert {f"compile for {TARGET}", f"link for {TARGET}"} <= set(stages)


def test_a_result_by_itself_can_lie_in_memory_of_the_callers(tmp_path: Path) -> None:
    program = trace(Mlp().eval(), (torch.randn(3, 5, 8),))
    assert lowered(program, tmp_path).main.given == (0,)


def test_the_library_needs_no_compiler_and_says_its_libc(tmp_path: Path) -> None:
    result = lowered(trace(Mlp().eval(), (torch.randn(3, 8),)), tmp_path)
    library = result.libraries[TARGET].read_bytes()
    assert b"libtvm" not in library  # its symbols come from whichever runtime is loaded
    assert str(tmp_path).encode() not in library
    assert tuple(int(part) for part in result.libc[TARGET].split(".")) <= (2, 27)
    assert result.linker.split()[0] in ("gcc", "clang", "ziglang")


def test_weights_are_stored_once_packed_or_plain_aligned(tmp_path: Path) -> None:
    model = Mlp().eval()
    result = lowered(trace(model, (torch.randn(3, 8),)), tmp_path)
    data = result.weights_file.read_bytes()
    weights = read_weights(memoryview(data))
    assert set(result.main.weights) == set(weights) - {
        n for n in weights if n.startswith(".padding")
    }
    assert set(result.main.weights) == {
        "first.weight:packed32",
        "first.bias",
        "second.weight:packed32",
        "second.bias",
        "offset",
    }
    np.testing.assert_array_equal(weights["first.bias"].data, model.first.bias.detach().numpy())
    start = np.frombuffer(data, np.uint8).ctypes.data
    for name in result.main.weights:
        assert (weights[name].data.ctypes.data - start) % 64 == 0


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.qr(x).R.sum() + torch.linalg.qr(x + 1).R.sum()
        return y + torch.linalg.eigvalsh(x[:, :3] @ x[:, :3].T).sum()


def test_all_unsupported_ops_are_listed_at_once_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as error:
        lowered(trace(Unsupported(), (torch.randn(3, 6),), dynamic=(None,)), tmp_path)
    diagnostics = error.value.diagnostics
    assert {diagnostic.code for diagnostic in diagnostics} == {"TC501"}
    text = {diagnostic.message.split()[0]: diagnostic for diagnostic in diagnostics}
    assert "aten.linalg_qr.default" in text
    assert any("eigh" in name for name in text)
    assert "2 times" in text["aten.linalg_qr.default"].message
    assert text["aten.linalg_qr.default"].location.file == __file__
    assert "torch.linalg.qr" in text["aten.linalg_qr.default"].location.text
    assert not (tmp_path / TARGET).exists()  # nothing was compiled


@pytest.mark.parametrize("wrong", ["dtype", "shape"])
def test_a_converter_that_disagrees_with_the_trace_is_an_error(monkeypatch, wrong: str) -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

    def sin(ctx, x):
        return ctx.cast(x, "float64") if wrong == "dtype" else ctx.reshape(x, (1, *x.shape))

    program = trace(Double(), (torch.randn(3, 4),))
    registry = sys.modules["tcexport.lowering.converters.registry"]
    registry._PARAMETERS[sin] = frozenset({"x"})
    monkeypatch.setitem(CONVERTERS, "aten.sin.default", sin)
    with pytest.raises(ExportError, match="TC502") as error:
        build(program, constants(program), CPU_TARGETS[TARGET], WeightStore())
    assert error.value.diagnostics[0].location.file == __file__


@pytest.mark.parametrize("asked", ["a guard", "a replacement"])
def test_what_lowering_assumes_of_sizes_is_an_error(monkeypatch, asked: str) -> None:
    """A converter that decides by the size in the trace would hold for that size alone."""

    class Wave(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

    program = trace(Wave(), (torch.randn(3, 4),), {"x": {0: torch.export.Dim.DYNAMIC}})
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)

    def sin(ctx, x):
        size = node.meta["val"].shape[0]
        assert size < 100 if asked == "a guard" else size == 3
        return CONVERTERS["aten.cos.default"](ctx, x)

    registry = sys.modules["tcexport.lowering.converters.registry"]
    registry._PARAMETERS[sin] = frozenset({"x"})
    monkeypatch.setitem(CONVERTERS, "aten.sin.default", sin)
    with pytest.raises(ExportError, match=r"TC502[^\n]*assumed of sizes") as error:
        build(program, constants(program), CPU_TARGETS[TARGET], WeightStore())
    assert error.value.diagnostics[0].location.file == __file__


def _worker_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the child run ``code`` first, by way of a sitecustomize on its path."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))


def test_a_segfault_of_the_compiler_is_a_diagnostic(tmp_path: Path, monkeypatch) -> None:
    code = "import os, sys, signal\nprint('last words', file=sys.stderr, flush=True)\n"
    _worker_that(tmp_path, monkeypatch, code + "os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(ExportError, match="SIGSEGV") as error:
        lowered(trace(Mlp().eval(), (torch.randn(3, 8),)), tmp_path)
    assert error.value.code == "TC503"
    assert "last words" in error.value.diagnostics[0].notes


def test_an_exception_in_the_compiler_is_a_diagnostic(tmp_path: Path, monkeypatch) -> None:
    _worker_that(tmp_path, monkeypatch, "import sys\nsys.modules['tvm'] = None")
    with pytest.raises(ExportError, match="exit code 1") as error:
        lowered(trace(Mlp().eval(), (torch.randn(3, 8),)), tmp_path)
    assert error.value.code == "TC503"
    assert any("tvm" in note for note in error.value.diagnostics[0].notes)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["main thread", "another thread"])
def test_an_interrupt_ends_the_child(tmp_path: Path, monkeypatch, elsewhere: bool) -> None:
    pid_file, slept = tmp_path / "pid", tmp_path / "slept"
    code = (
        "import os, time, pathlib, signal\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(1)\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(20)\n"
        f"pathlib.Path({str(slept)!r}).touch()\n"
    )
    program = trace(Mlp().eval(), (torch.randn(3, 8),))
    _worker_that(tmp_path, monkeypatch, code)
    done = threading.Event()
    waits = threading.Thread(target=done.wait)
    waits.start()  # the kernel gives a signal to any thread that does not block it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if elsewhere else ())
    try:
        with pytest.raises(KeyboardInterrupt):
            lowered(program, tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        done.set()
        waits.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), signal.SIGTERM)
    assert not slept.exists()


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    program = trace(Mlp().eval(), (torch.randn(3, 8),))
    with pytest.raises(ExportError, match="TC506"):
        lower(program, ("x86-64-v9",), tmp_path, lambda stage, seconds: None)


class Aliases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        y = x + 1
        return {
            "input": x,
            "view": x.reshape(-1),
            "weight": self.weight,
            "none": None,
            "size": x.shape[0] * 2,
            "twice": [y, y],
            "reshaped": y.view(-1),
            "row": self.weight.view(-1),
        }


def test_results_never_lie_in_the_callers_memory(agree) -> None:
    x = torch.randn(2, 3)
    compiled = agree(Aliases(), (x,), (torch.randn(1, 1),))
    before = [result.clone() for result in compiled((x,))]
    for result in compiled((x,)):
        result.fill_(7)
    for old, new in zip(before, compiled((x,)), strict=True):
        np.testing.assert_array_equal(old, new)


def test_axes_that_are_multiples_of_a_hidden_size(compile_program) -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2) * y[:, None] + x.shape[0]

    n = torch.export.Dim("n", min=1, max=64)
    args = (torch.randn(6), torch.randn(3))
    compiled = compile_program(trace(Halves(), args, dynamic=({0: 2 * n}, {0: n})))
    assert compiled.answer.main.sizes == ()  # y binds n
    x, y = torch.randn(10), torch.randn(5)
    np.testing.assert_allclose(compiled((x, y))[0], Halves()(x, y).numpy())


def test_a_hidden_size_is_an_argument(compile_program) -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2).sum(1)

    n = torch.export.Dim("n", min=1, max=64)
    compiled = compile_program(trace(Pairs(), (torch.randn(6),), dynamic=({0: 2 * n},)))
    assert len(compiled.answer.main.sizes) == 1
    x = torch.randn(10)
    np.testing.assert_allclose(compiled((x,), (5,))[0], Pairs()(x).numpy(), rtol=1e-6)


def test_a_value_of_an_input_is_an_argument(compile_program) -> None:
    class TakeFirst(nn.Module):
        def forward(self, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            n = int(i.item())
            torch._check(n >= 0)
            torch._check(n < len(y))
            return y[:n] + n

    compiled = compile_program(trace(TakeFirst(), (torch.tensor(4), torch.randn(10))))
    y = torch.randn(7)
    assert len(compiled.answer.main.sizes) == 1
    np.testing.assert_allclose(compiled((torch.tensor(3), y), (3,))[0], y[:3].numpy() + 3)


class WritesParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.add_(1)
        return x + self.scale


class WritesInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.poisson(x)


@pytest.mark.parametrize(
    ("model", "code", "line"),
    [
        (WritesParameter(), "TC103", "self.scale.add_(1)"),
        (WritesInput(), "TC104", "x.mul_(2)"),
        (Noise(), "TC105", "return x + torch.poisson(x)"),
    ],
)
def test_state_and_randomness_are_refused_with_the_line(model, code, line) -> None:
    with pytest.raises(ExportError, match=code) as error:
        trace(model, (torch.randn(3),))
    assert error.value.diagnostics[0].location.text == line


class Draws(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.rand(3)
        x = x * torch.rand(3)
        return x - torch.rand(3)


def test_more_draws_than_are_told_apart_are_refused_at_the_first_of_them(monkeypatch) -> None:
    monkeypatch.setattr(generator, "MOST_DRAWS", 4)
    trace(Draws(), (torch.randn(3),))
    monkeypatch.setattr(generator, "MOST_DRAWS", 3)
    with pytest.raises(ExportError, match=r"TC105.* 3 times") as error:
        trace(Draws(), (torch.randn(3),))
    (found,) = error.value.diagnostics
    assert found.location.text == "return x - torch.rand(3)"
    assert found.tries


def test_constants_are_clones(tmp_path: Path) -> None:
    model = Mlp().eval()
    program = trace(model, (torch.randn(3, 8),))
    found = {constant.name: constant for constant in constants(program).values()}
    with torch.no_grad():
        model.offset.fill_(5)
    assert found["offset"].value.eq(1).all()
    assert constant_tensor(Constant("a", torch.ones(2, 3))).shape == (2, 3)


class ReadsFloats(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = x.mean().item()
        return x * factor + (factor * 2 + 1)


def test_what_is_made_of_a_float_that_is_read_is_not_blamed_for_it() -> None:
    program = trace(ReadsFloats(), (torch.randn(3),))
    with pytest.raises(ExportError, match="TC501") as error:
        build(program, constants(program), CPU_TARGETS[TARGET], WeightStore())
    (found,) = error.value.diagnostics
    assert found.location.text == "factor = x.mean().item()"
