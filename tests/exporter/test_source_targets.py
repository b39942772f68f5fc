"""``--target cuda:…``: what is read, what is refused and why. No compiler and no GPU is needed."""

from __future__ import annotations

import pytest

from tcexport.artifacts.errors import ExportError, UsageError
from tcexport.artifacts.gpus import this_driver
from tcexport.artifacts.platforms import CUDA_ARCHITECTURES
from tcexport.exporter.options import parse_targets
from tcexport.lowering.cuda import toolchain
from tcexport.lowering.targets import GpuTarget, target_named


def gpu(*values: str) -> GpuTarget:
    (target,) = (each for each in parse_targets(values) if isinstance(each, GpuTarget))
    return target


def test_architectures_come_lowest_first_and_once() -> None:
    target = gpu("cuda:sm_100+sm_80", "cuda:sm_90+sm_80")
    assert target.architectures == ("sm_80", "sm_90", "sm_100")
    assert target.ptx == ""
    assert target.name == "cuda:sm_80+sm_90+sm_100"


def test_ptx_is_that_of_the_highest_architecture_or_the_baseline_alone() -> None:
    assert gpu("cuda:sm_90+ptx+sm_80").ptx == "compute_90"
    assert gpu("cuda:ptx").binaries == ("compute_75",)


def test_a_gpu_stands_behind_the_cpu_levels_and_is_found_by_its_name() -> None:
    targets = parse_targets(("cuda:sm_80+ptx", "cpu"))
    assert [each.label for each in targets] == [
        "cpu:x86-64-v3",
        "cpu:x86-64-v4",
        "cuda:sm_80+ptx",
    ]
    assert [target_named(each.name) for each in targets] == list(targets)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("cuda", "names no architecture"),
        ("cuda:", "names no architecture"),
        ("cuda:sm_70", "no architecture 'sm_70'"),
        ("cuda:sm_90a", "try: --target cuda:sm_90$"),
        ("cuda:90", "try: --target cuda:sm_90$"),
        ("cuda:compute_90", "try: --target cuda:sm_90$"),
        ("cuda:sm_80+cuda", "no architecture 'cuda'"),
        ("opencl", "OpenCL source"),
        ("metal", "Metal source"),
        ("webgpu", "WGSL"),
        ("rocm", "AMD's linker"),
        ("vulkan", "built without"),
    ],
)
def test_what_is_not_built_is_refused_with_the_reason(value: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"(?m){says}") as raised:
        parse_targets((value,))
    assert raised.value.code == "TC506"


def test_native_names_the_gpus_of_this_machine_or_says_that_there_are_none() -> None:
    driver = this_driver()
    if driver.gpus:
        expected = {"sm_{}{}".format(*each.capability) for each in driver.gpus}
        assert set(gpu("cuda:native").architectures) == expected
        return
    with pytest.raises(UsageError, match="no GPU on this machine") as raised:
        parse_targets(("cuda:native",))
    assert (driver.missing or driver.failed) in str(raised.value)


def test_a_missing_or_other_compiler_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "PACKAGES", {"nvidia-cuda-nvrtc-of-no-one": "13.0.88"})
    with pytest.raises(ExportError, match="is not installed") as raised:
        toolchain.find_toolchain()
    assert raised.value.code == "TC530"
    assert "pip install 'tcexport[cuda]'" in str(raised.value)
    monkeypatch.setattr(toolchain, "PACKAGES", {"numpy": "0.1"})
    with pytest.raises(ExportError, match=r"numpy is .*, and 0\.1 is needed"):
        toolchain.find_toolchain()


def test_every_architecture_has_a_target() -> None:
    assert gpu("cuda:" + "+".join(CUDA_ARCHITECTURES)).architectures == CUDA_ARCHITECTURES
