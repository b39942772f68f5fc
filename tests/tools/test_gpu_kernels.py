"""The machine code of each class of kernels for GPUs: tensor cores where they are promised, nothing in
local memory where they multiply, and no more of a device than each of them has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tcexport.artifacts.errors import ExportError
from tcexport.lowering.cuda.toolchain import Toolchain, find_toolchain
from tcexport.tools import gpu_kernels
from tcexport.tools.gpu_kernels import Code, Kernel, MissingTool

ROOT = Path(__file__).parents[2]
ARCHITECTURES = ("sm_75", "sm_80", "sm_120")  # without copies in the background, with, the newest


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        for tool in ("cuobjdump", "nvdisasm"):
            gpu_kernels.disassembler(tool)
        return find_toolchain()
    except MissingTool as error:
        pytest.skip(str(error))
    except ExportError as error:
        pytest.skip(f"{error.diagnostics[0].message}; pip install 'tcexport[cuda]'")


@pytest.fixture(scope="module")
def codes(tools: Toolchain) -> dict[str, dict[str, Code]]:
    return gpu_kernels.look(ARCHITECTURES, tools)


def multiplies(kernel: Kernel) -> bool:
    adds = kernel.name.endswith("their sum")
    return not adds and not kernel.function.startswith(("scan", "sort", "first"))


def on_tensor_cores(kernel: Kernel, architecture: str) -> bool:
    return (
        multiplies(kernel)
        and "f32" not in kernel.function
        and (
            architecture != "sm_75" or "bf16" not in kernel.function  # 7.5 has none for bfloat16
        )
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_keeps_to_registers_and_shared_memory(
    codes: dict[str, dict[str, Code]], architecture: str
) -> None:
    found = codes[architecture]
    assert set(found) == {kernel.entry for kernel in gpu_kernels.kernels()}
    for kernel in gpu_kernels.kernels():
        code = found[kernel.entry]
        assert 0 < code.registers <= gpu_kernels.MOST_REGISTERS
        assert kernel.shared <= gpu_kernels.SHARED
        assert gpu_kernels.resident(kernel, code, architecture) >= 1, (kernel.name, code)
        # Where bfloat16 is multiplied without an instruction for it, no promise is made.
        if architecture != "sm_75" or "bf16" not in kernel.function:
            assert code.spilled == 0, (kernel.name, code)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_half_types_are_multiplied_on_tensor_cores(
    codes: dict[str, dict[str, Code]], architecture: str
) -> None:
    for kernel in gpu_kernels.kernels():
        code = codes[architecture][kernel.entry]
        assert (code.products > 0) == on_tensor_cores(kernel, architecture), (kernel.name, code)
        fetches = multiplies(kernel) and architecture != "sm_75"
        assert (code.fetches > 0) == fetches, (kernel.name, code)


def test_a_tool_is_taken_from_the_path_where_no_package_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "elsewhere"
    tool.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpu_kernels.disassembler("elsewhere") == tool
    with pytest.raises(MissingTool, match=r"nvidia-cuda-nowhere is not installed, and the PATH"):
        gpu_kernels.disassembler("nowhere")


def test_a_section_takes_the_place_of_the_one_before() -> None:
    page = "# GPUs\n\n## Machine code\n\nold\n\n## On a device\n\nrun\n"
    new = "## Machine code\n\nnew\n"
    assert gpu_kernels.with_section(page, new) == page.replace("old", "new")
    assert gpu_kernels.with_section("# GPUs\n", new) == f"# GPUs\n\n{new}"


@pytest.mark.zoo
def test_the_page_is_that_of_the_code(tools: Toolchain) -> None:
    codes = gpu_kernels.look(tuple(gpu_kernels.MULTIPROCESSOR), tools)
    page = (ROOT / gpu_kernels.PAGE).read_text()
    assert gpu_kernels.with_section(page, gpu_kernels.section(codes)) == page
