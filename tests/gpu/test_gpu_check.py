"""The run for whoever has a GPU, from end to end on the stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tcexport.tools.gpu_check import distance, main

from ..runtime.bundles import add_weight, gather_rows
from . import standin
from .bundles import gpu_compiled, pack_gpu
from .small import TABLE, WEIGHT, added_contract, compiled_add, gathered_contract


@pytest.fixture
def bundles(kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(standin.build_driver()))  # for its child processes
    added = pack_gpu(
        tmp_path / "added.tcpkg",
        added_contract(),
        gpu_compiled(add_weight, kernels),
        {"w": WEIGHT},
        cpu={"x86-64-v3": compiled_add()},
    )
    library = gpu_compiled(gather_rows, kernels)
    rows = pack_gpu(
        tmp_path / "rows.tcpkg", gathered_contract(), library, {"table": TABLE}, results=3
    )
    return added, rows


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_a_bundle_is_held_against_its_own_cpu(bundles: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = run(bundles[0], "--report", report)
    assert result.exit_code == 0, result.output
    for says in (
        "cuda:sm_80+sm_90+ptx on cuda:0",
        "numbers at n=512             off by 0.0e+00 from the bundle on the CPU",
        "n=4097                       TC301",
        "graphs at n=384              4 of 6 calls replayed, the same bits as without",
        "5 graphs with",
        "cuda:99                      TC407",
        "CUDA_VISIBLE_DEVICES='' cuda TC420",
        "all as promised",
    ):
        assert says in result.output
    (found,) = json.loads(report.read_text())
    assert list(found["medians"]) == ["n=1", "n=128", "n=256", "n=384", "n=512"]
    assert set(found["medians"]["n=1"]) == {"bundle", "with graphs", "bundle, from numpy"}


def test_saved_results_are_what_counts_where_they_are(
    bundles: tuple[Path, Path], tmp_path: Path
) -> None:
    added, folder = bundles[0], tmp_path / "expected"
    assert run(added, "--save", folder).exit_code == 0
    assert run(added, "--expected", folder).exit_code == 0
    file = sorted(folder.iterdir())[2]
    np.savez(file, out0=np.load(file)["out0"] + 1)
    result = run(added, "--expected", folder)
    assert result.exit_code == 1
    assert "BAD numbers at n=256" in result.output and "1 bad" in result.output


def test_a_model_that_cannot_be_recorded_is_not_as_promised(
    bundles: tuple[Path, Path], driver: Callable[..., None]
) -> None:
    driver(capture="0")
    result = run(bundles[0])
    assert result.exit_code == 1
    assert "BAD graphs at n=1                0 of 6 calls replayed, the same bits" in result.output


def test_without_anything_to_hold_them_against_numbers_are_not_good(
    bundles: tuple[Path, Path],
) -> None:
    result = run(bundles[1])
    assert result.exit_code == 1
    assert "BAD numbers                      nothing to hold them against (TC407)" in result.output


def test_time_that_is_over_is_told(bundles: tuple[Path, Path]) -> None:
    result = run(bundles[0], "--seconds", 0)
    assert result.exit_code == 0
    assert "speed at n=1                 left out: no time" in result.output


def test_a_bundle_that_cannot_run_is_told(
    bundles: tuple[Path, Path], driver: Callable[..., None]
) -> None:
    driver(devices="")
    result = run(bundles[0])
    assert result.exit_code == 1
    assert "BAD load" in result.output and "TC420" in result.output


def test_distances_see_what_is_no_number() -> None:
    one = np.array([1.0, -4.0], np.float32)
    assert distance(one, one, "float32") == 0
    assert distance(one + np.float32(0.5), one, "float32") == pytest.approx(0.125)
    nan = np.array([1.0, np.nan], np.float32)
    assert distance(nan, nan, "float32") == 0
    for got, wanted in ((nan, one), (one, nan), (one[:1], one)):
        assert distance(got, wanted, "float32") == float("inf")
    bits = (one.view(np.uint32) >> 16).astype(np.uint16)
    assert distance(bits, bits, "bfloat16") == 0
    assert distance(np.array([1, 2]), np.array([1, 3]), "int64") == float("inf")
