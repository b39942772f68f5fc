"""`tools.kernel_times`: each function that the VM calls, with its count and its time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from tcexport.tools.kernel_times import command, kernel_times


@pytest.fixture(scope="module")
def bundle(export_once: Callable[..., Path]) -> Path:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.Softmax(-1))
    options = {"axes": {"input": ("n", None)}, "dynamic": {"n": (1, 64)}}
    return export_once(
        "kernel-times",
        model,
        (torch.randn(4, 32),),
        specialize={"n": 8},
        keep_variants=True,
        **options,
    )


def test_every_kernel_of_a_call_is_told_with_its_time(bundle: Path) -> None:
    total, rows = kernel_times(bundle, "n=8", None, 1, 5)
    counts = {name: count for name, count, _ in rows}
    assert counts["gemm_64x32"] == counts["gemm_32x64"] == 1
    assert all(seconds > 0 for _, _, seconds in rows) and total > 0
    assert [seconds for *_, seconds in rows] == sorted((row[2] for row in rows), reverse=True)


def test_a_variant_is_timed_by_its_name_and_sizes_are_checked(bundle: Path) -> None:
    _, variant = kernel_times(bundle, "n=8", None, 1, 3)
    _, general = kernel_times(bundle, "n=8", "general", 1, 3)
    asked = "vm.builtin.make_shape"  # of sizes that are known there is nothing to make
    assert asked in {name for name, *_ in general} - {name for name, *_ in variant}
    done = CliRunner().invoke(command, [str(bundle), "--sizes", "n=8", "--variant", "general"])
    assert done.exit_code == 0 and "gemm_64x32" in done.output and "a call: " in done.output
    wrong = CliRunner().invoke(command, [str(bundle), "--sizes", "m=8"])
    assert wrong.exit_code == 2 and "TC006" in wrong.output
    other = CliRunner().invoke(command, [str(bundle), "--variant", "large"])
    assert other.exit_code == 2 and "general" in other.output
    absent = CliRunner().invoke(command, ["absent.tcpkg"])
    assert absent.exit_code != 0 and "absent.tcpkg" in absent.output
