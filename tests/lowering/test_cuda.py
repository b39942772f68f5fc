"""GPU code, made without a GPU: what is in the finished library, and whether its numbers are eager's.

The compiler is the extra ``tcexport[cuda]``, which ``tcexport[test]`` brings.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tcexport.artifacts.errors import ExportError
from tcexport.artifacts.platforms import CUDA_ARCHITECTURES
from tcexport.lowering import (
    converters,  # noqa: F401  (registers them)
    worker,
)
from tcexport.lowering.checks import CHECK_INDEX
from tcexport.lowering.cuda import cache
from tcexport.lowering.cuda.blob import read_blob
from tcexport.lowering.cuda.pack import export_gpu_library, look_again, without_a_device
from tcexport.lowering.cuda.tensor_cores import parts_of
from tcexport.lowering.cuda.toolchain import Toolchain, find_toolchain
from tcexport.lowering.elf import dynamic_symbol
from tcexport.lowering.graph import build
from tcexport.lowering.link import find_linker, link
from tcexport.lowering.pipeline import compile_for_gpu
from tcexport.lowering.targets import GpuTarget, gpu_target
from tcexport.lowering.weights import WeightStore, constants
from tcexport.tools.gpu_kernels import MissingTool, disassembler

from .conftest import trace

TARGET = gpu_target(["sm_80", "sm_90", "ptx"])
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        return find_toolchain()
    except ExportError as error:
        pytest.skip(f"{error.diagnostics[0].message}; pip install 'tcexport[cuda]'")


class Small(nn.Module):
    """A product, a norm and a softmax: one kernel of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(torch.relu(self.up(x)))).softmax(-1)


@pytest.fixture(scope="module")
def executable() -> object:
    torch.manual_seed(0)
    program = trace(Small().eval(), (torch.randn(5, 64),), {"x": {0: torch.export.Dim.AUTO}})
    graph = build(program, constants(program), TARGET, WeightStore())
    with without_a_device():
        return compile_for_gpu(graph.module, TARGET)


def packed(executable: object, folder: Path, tools: Toolchain, target: GpuTarget = TARGET) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "model.so"
    export_gpu_library(executable, target, tools, find_linker(target), library)
    return library


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def library(
    executable: object, tools: Toolchain, cached: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.FOLDER, str(cached))
        return packed(executable, tmp_path_factory.mktemp("library"), tools)


def fatbin_of(library: Path) -> bytes:
    data = library.read_bytes()
    place = dynamic_symbol(data, b"__tvm_ffi__library_bin")
    (code,) = read_blob(data[place:]).device_codes()
    return code.code


def cuobjdump(library: Path, folder: Path, *options: str) -> str:
    """What NVIDIA's own tool says of the fatbin in a library."""
    try:
        tool = disassembler("cuobjdump")
    except MissingTool as error:
        pytest.skip(str(error))
    file = folder / "kernels.fatbin"
    file.write_bytes(fatbin_of(library))
    environment = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    command = [str(tool), *options, str(file)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout


def test_the_library_holds_machine_code_and_ptx_and_no_source(
    library: Path, tmp_path: Path
) -> None:
    found = look_again(library.read_bytes(), TARGET)
    assert sorted(found.images) == ["compute_90", "sm_80", "sm_90"]
    assert len(found.kernels) == 4
    assert b"__global__" not in library.read_bytes()
    listed = cuobjdump(library, tmp_path, "-lelf", "-lptx")
    assert sorted(re.findall(r"\.(sm_\d+)\.(cubin|ptx)", listed)) == [
        ("sm_80", "cubin"),
        ("sm_90", "cubin"),
        ("sm_90", "ptx"),
    ]


def test_no_kernel_spills_or_takes_more_than_a_device_has(library: Path, tmp_path: Path) -> None:
    text = cuobjdump(library, tmp_path, "--dump-resource-usage")
    rows = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    assert len(rows) == 8  # four kernels, two architectures
    for registers, stack, shared, local in rows:
        assert int(registers) * 128 <= 65536 and int(registers) <= 255
        assert int(shared) <= 49152
        assert (int(stack), int(local)) == (0, 0)


def test_equal_exports_give_equal_bytes_and_compile_once(
    executable: object,
    library: Path,
    tools: Toolchain,
    cached: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(cache.FOLDER, str(cached))
    without_compiler = dataclasses.replace(tools, nvrtc=tmp_path / "none.so")
    again = packed(executable, tmp_path / "again", without_compiler)
    assert again.read_bytes() == library.read_bytes()
    # Another architecture needs the compiler again, and says what became of it.
    with pytest.raises(ExportError, match="NVRTC failed for sm_86"):
        packed(executable, tmp_path / "other", without_compiler, gpu_target(["sm_80", "sm_86"]))


def test_a_damaged_entry_of_the_cache_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    key = cache.key_of("a", "bc")
    assert key != cache.key_of("ab", "c")
    assert cache.lookup(key) is None
    cache.store(key, b"machine code")
    assert cache.lookup(key) == b"machine code"
    (entry,) = (tmp_path / "cuda").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert cache.lookup(key) is None


def test_a_cache_that_cannot_be_written_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "file"))
    cache.store("key", b"code")
    assert cache.lookup("key") is None


def test_a_library_with_source_or_without_an_architecture_is_refused(
    executable: object, library: Path, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=r"holds sm_80 sm_90 compute_90, asked for was sm_86"):
        look_again(library.read_bytes(), gpu_target(["sm_86"]))
    source = tmp_path / "source.so"
    linker = find_linker(TARGET)
    executable.export_library(  # type: ignore[attr-defined]
        str(source),
        fcompile=lambda output, objects, **_: link(
            linker, [Path(each) for each in objects], Path(output)
        ),
    )
    with pytest.raises(ExportError, match="holds CUDA source"):
        look_again(source.read_bytes(), TARGET)


def test_the_compiler_knows_the_architectures_that_are_offered(tools: Toolchain) -> None:
    ctypes.CDLL(str(tools.builtins), ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(tools.nvrtc))
    count = ctypes.c_int()
    assert nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    found = (ctypes.c_int * count.value)()
    assert nvrtc.nvrtcGetSupportedArchs(found) == 0
    assert tuple(f"sm_{number}" for number in found) == CUDA_ARCHITECTURES


class OneAxis(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        line = x[0].scatter_add(0, at, x[1])
        return line, nn.functional.max_pool1d(x[None], 2, return_indices=True)[1].sort(-1)[0]


def test_an_op_without_a_kernel_for_a_gpu_is_refused_by_name() -> None:
    program = trace(OneAxis(), (torch.randn(3, 4), torch.tensor([1, 1, 0, 3])))
    with pytest.raises(ExportError) as raised:
        build(program, constants(program), TARGET, WeightStore())
    text = str(raised.value)
    assert "TC501" in text and "aten.sort" not in text
    one_axis, pooled = raised.value.diagnostics
    assert "scatter_add" in one_axis.message and "along the only axis" in one_axis.message
    assert "max_pool2d_with_indices" in pooled.message and "on a GPU" in pooled.message
    for told in (one_axis, pooled):
        assert told.location is not None and told.location.file.endswith("test_cuda.py")
        assert told.tries == ("--target cpu",)


class Looks(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[CHECK_INDEX(2 * at, 3, True, 0)]


def test_a_check_of_computed_indices_is_refused_with_what_does_without_it() -> None:
    program = trace(Looks(), (torch.randn(3, 4), torch.tensor([1, 0])))
    with pytest.raises(ExportError, match="cannot be looked at during a call") as raised:
        build(program, constants(program), TARGET, WeightStore())
    assert raised.value.diagnostics[0].tries[0].startswith("indices.clamp(0, size - 1)")


@pytest.mark.parametrize(
    ("columns", "rows", "parts"), [(64, 2048, 4), (4096, 2048, 1), (64, 512, 1)]
)
def test_few_rows_are_multiplied_in_parts_where_a_weight_has_few_columns(
    columns: int, rows: int, parts: int
) -> None:
    example = (torch.randn(5, rows, dtype=torch.float16),)
    module = nn.Linear(rows, columns).half()
    program = trace(module.eval(), example, {"input": {0: torch.export.Dim.AUTO}})
    text = str(build(program, constants(program), TARGET, WeightStore()).module)
    assert ("gemm_part" in text and "gemm_sum" in text) == (parts > 1)
    assert parts_of(columns, rows) == parts


class CountsAndDraws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls + torch.rand(3)


def test_random_numbers_are_refused_by_name_and_state_is_not(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(trace(CountsAndDraws(), (torch.randn(3),)), path)
    for ask in (
        lambda: worker.look((path,), (TARGET.name,)),
        lambda: worker.run((path,), (TARGET.name,), tmp_path),
    ):
        with pytest.raises(ExportError) as raised:
            ask()
        (draws,) = raised.value.diagnostics
        assert draws.code == "TC501"
        assert "random numbers" in draws.message and "noise" in draws.tries[0]


TOLERANCES = {  # the largest difference, relative to the size of the result
    "edges:float32": 2e-6,
    "scans:float32": 2e-6,
    "sorts:float32": 0,
    "writes:float32": 1e-6,
    "narrow:float16": 2e-3,
    "roberta:float32": 2e-6,
    "encoder:float32": 2e-6,
    "images:float32": 2e-6,
    "encoder:float16": 2e-3,
    "encoder:bfloat16": 2e-2,
    "block:float16": 4e-3,
    "bert:bfloat16": 3e-2,
}
MORE_TOLERANCES = {
    "scans:float16": 2e-3,
    "scans:bfloat16": 1e-2,
    "sorts:float16": 0,
    "writes:float16": 2e-3,
    "narrow:bfloat16": 2e-2,
    "sorts:bfloat16": 0,
    "images:float16": 4e-3,
    "images:bfloat16": 3e-2,
    "block:float32": 2e-6,
    "block:bfloat16": 3e-2,
    "bert:float32": 2e-6,
    "bert:float16": 4e-3,
}


def differences_of(cases: Iterable[str], folder: Path) -> dict[str, Any]:
    """Of each case at each size, from one process for all of them; what it said last, as "stderr"."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler on the PATH: the stand-in driver cannot be built")
    done = subprocess.run(
        [sys.executable, str(HERE / "gpu_numbers.py"), *cases],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return dict(map(json.loads, lines)) | {"stderr": done.stderr[-3000:]}


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return differences_of(TOLERANCES, tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="module")
def more_differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return differences_of(MORE_TOLERANCES, tmp_path_factory.mktemp("numbers"))


def require_eagers(case: str, differences: dict[str, Any], tolerance: float) -> None:
    assert case in differences, differences["stderr"]
    found = differences[case]
    assert len(found) > 1
    assert max(found) <= tolerance, found


@pytest.mark.parametrize("case", TOLERANCES)
def test_the_numbers_on_the_stand_in_driver_are_those_of_eager(
    case: str, differences: dict[str, Any]
) -> None:
    require_eagers(case, differences, TOLERANCES[case])


@pytest.mark.zoo
@pytest.mark.parametrize("case", MORE_TOLERANCES)
def test_so_are_those_of_more_types(case: str, more_differences: dict[str, Any]) -> None:
    require_eagers(case, more_differences, MORE_TOLERANCES[case])
