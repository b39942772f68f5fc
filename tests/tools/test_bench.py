"""``tcexport bench``: sizes, inputs, and what is said of right, wrong and failing runtimes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tcexport import UsageError
from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.contract import (
    AxisSource,
    Contract,
    Dim,
    Guard,
    IndexGuard,
    Leaf,
    Origin,
    Parameter,
    Part,
    TensorInput,
    TupleNode,
    ValueSource,
)
from tcexport.runtime.drawn import drawn_inputs
from tcexport.runtime.machine import this_machine
from tcexport.tools.bench_level import environment_of
from tcexport.tools.bench_measure import measure
from tcexport.tools.bench_plot import svg
from tcexport.tools.bench_report import markdown_lines, text_lines
from tcexport.tools.bench_results import Machine, Results, RuntimeResult, Timing, as_data
from tcexport.tools.bench_sizes import (
    default_sizes,
    misfit,
    parse_sizes,
    size_to_trace,
    sizes_of_shapes,
)
from tcexport.tools.bench_suite import _MODELS, lists_of, page, read_results

MODEL = """
import os
import torch

torch.manual_seed({seed})

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.layer = torch.nn.Linear(8, 3)

    def forward(self, ids, scale: float = 2.0):
        {first}
        return {{"y": self.layer(self.table(ids)) * scale, "rows": ids.shape[0]}}

model = Net()
example_inputs = (torch.randint(0, 50, (2, 5)),)
axes = {{"ids": ("batch", "seq")}}
"""
SIZES = ["batch=1,seq=3", "batch=4,seq=7"]


def write_model(path: Path, seed: int = 0, first: str = "pass") -> Path:
    path.write_text(MODEL.format(seed=seed, first=first))
    return path


def run(folder: Path, *args: str, status: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-m", "tcexport", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.py and model.tcpkg in it."""
    made = tmp_path_factory.mktemp("bench")
    write_model(made / "model.py")
    dims = ("--dynamic", "batch=1..8,seq=1..32", "--target", "cpu:x86-64-v3")
    run(made, "model.py", *dims)
    return made


def measured(folder: Path, source: Path, sizes: Sequence[str], runtimes: Sequence[str]) -> Results:
    with open_bundle(folder / "model.tcpkg") as opened:
        contract = opened.manifest.contract
    return measure(
        folder / "model.tcpkg",
        against=str(source),
        inputs=(),
        runtimes=runtimes,
        sizes=[parse_sizes(each, contract) for each in sizes],
        threads=1,
        rounds=2,
        progress=lambda stage, seconds: None,
    )


# --- the command ------------------------------------------------------------------------------------


def test_a_bundle_beside_eager(folder: Path) -> None:
    sizes = [option for each in SIZES for option in ("--sizes", each)]
    out, err = run(
        folder, "bench", "model.tcpkg", "--against", "model.py", "--runtimes", "bundle,eager", *sizes,
        "--threads", "1", "--rounds", "3", "--format", "json", "-o", "r.json", "--plot", "r.svg",
    )  # fmt: skip
    assert "time batch=1, seq=3 …" in err
    data = json.loads(out)
    assert data == json.loads((folder / "r.json").read_text())
    assert data["sizes"] == [{"batch": 1, "seq": 3}, {"batch": 4, "seq": 7}]
    assert (data["threads"], data["rounds"]) == (1, 3)
    assert {"torch", "numpy", "python"} <= data["machine"]["versions"].keys()
    bundle, eager = data["runtimes"]
    assert [bundle["name"], eager["name"]] == ["bundle", "eager"]
    for timing in (*bundle["timings"], *eager["timings"]):
        low, high = timing["quartiles"]
        assert len(timing["samples"]) == 3 and low <= timing["median"] <= high
        assert timing["right"] is True and timing["error"] < 1e-6
    assert all(timing["check"] > 0 for timing in bundle["timings"])
    assert all(timing["counts"] and timing["ratio"] > 0 for timing in eager["timings"])
    assert eager["mean_ratio"]["sizes"] == 2
    assert bundle["peak"] < eager["peak"], "the bundle's process has no torch in it"
    assert bundle["first_answer"] > 0 and bundle["notes"] == {"target": "cpu:x86-64-v3"}
    assert bars((folder / "r.svg").read_text()) == 2

    results = read_results(data)
    assert json.loads(json.dumps(as_data(results))) == data, (
        "the JSON holds all that the results do"
    )
    text = "\n".join(text_lines(results))
    assert "model.tcpkg (Net) beside model.py: 1 thread, 3 rounds" in text
    assert "batch=4, seq=7\n  bundle" in text and "slower than the bundle by" in text
    ratio = f"{eager['timings'][0]['ratio']:.2f}x"
    assert ratio in text


def test_without_a_source_the_bundle_runs_alone_at_sizes_of_its_contract(folder: Path) -> None:
    # The command itself needs no torch either.
    command = (
        "import sys; sys.modules['torch'] = None; from tcexport.tools.cli import run_command;"
        "sys.exit(run_command(['bench', 'model.tcpkg', '--rounds', '1', '-q']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "batch=1, seq=1\n" in done.stdout and "batch=8, seq=32\n" in done.stdout
    assert "not compared, check" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sizes", "batch=1"], "--sizes batch=1 leaves seq open"),
        (["--sizes", "batch=9,seq=1"], "the bundle serves batch=1..8"),
        (["--sizes", "batch"], "cannot read --sizes batch"),
        (["--sizes", "batch=1,sq=1"], "the bundle has no dim sq"),
        (["--runtimes", "bundle,eger"], "there is no runtime eger"),
        (["--runtimes", "eager"], "eager cannot run without the model's source"),
        (["--plot", "no/where.svg"], "there is no folder no"),
    ],
)
def test_what_is_typed_wrong_is_said_before_anything_runs(
    folder: Path,
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tcexport.tools.cli import run_command

    monkeypatch.chdir(folder)
    assert run_command(["bench", "model.tcpkg", *options]) == 2
    assert said in capsys.readouterr().err


# --- runtimes that are wrong, fail, or are not there --------------------------------------------------


def test_a_bundle_of_another_model_is_wrong_and_wins_nothing(folder: Path) -> None:
    write_model(folder / "other.py", seed=1)
    out, _ = run(
        folder, "bench", "model.tcpkg", "--against", "other.py", "--runtimes", "bundle,eager",
        "--sizes", SIZES[0], "--rounds", "2", status=5,
    )  # fmt: skip
    assert "WRONG, error" in out
    assert "other.py is not the file that the bundle was made from" in out
    assert "  eager  no size counts" in out


def test_a_runtime_that_fails_is_shown_where_it_fails(folder: Path) -> None:
    first = "if ids.shape[0] > 2: raise RuntimeError('too | many')"
    source = write_model(folder / "picky.py", first=first)
    results = measured(folder, source, SIZES, ("bundle", "eager"))
    bundle, eager = results.runtimes
    assert eager.timings[0].right and not eager.timings[0].failure
    assert eager.timings[1].failure == "RuntimeError: too | many"
    assert bundle.timings[1].samples and bundle.timings[1].right is None
    assert results.mean_ratio("eager")[1] == 1
    text = "\n".join(text_lines(results))
    assert "failed: RuntimeError: too | many" in text and "(1 of 2 sizes)" in text
    assert "failed: RuntimeError: too \\| many" in "\n".join(markdown_lines(results))
    assert bars(svg(results)) == 1 and ">failed<" in svg(results)


def test_a_process_that_dies_is_shown_with_how_it_ended(folder: Path) -> None:
    first = "ids.shape[0] > 2 and (os.write(2, b'no more\\n'), os._exit(3))"
    source = write_model(folder / "deadly.py", first=first)
    results = measured(folder, source, [SIZES[1], SIZES[0]], ("bundle", "eager"))
    bundle, eager = results.runtimes
    assert all(each.samples for each in bundle.timings)
    ended = "the process ended with exit status 3: no more"
    assert [each.failure for each in eager.timings] == [ended, ended]


def test_a_runtime_that_is_not_installed_and_a_source_that_fails_are_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broken.py").write_text("raise ValueError('no model today')\n")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name.startswith("onnx") else found(name),
    )
    results = measured(folder, folder / "broken.py", SIZES[:1], ("bundle", "eager", "onnxruntime"))
    bundle, eager, onnx = results.runtimes
    assert bundle.timings[0].samples
    assert "no model today" in eager.failure
    assert onnx.skipped.startswith("not installed: onnxruntime onnx onnxscript")
    text = "\n".join(text_lines(results))
    assert "failed: UsageError" in text and "skipped, not installed: onnxruntime" in text


def test_a_source_that_is_called_otherwise_is_not_compared(folder: Path) -> None:
    text = MODEL.format(seed=0, first="pass").replace("ids", "tokens")
    (folder / "renamed.py").write_text(text)
    results = measured(folder, folder / "renamed.py", SIZES[:1], ("bundle", "eager"))
    assert results.runtimes[1].failure.startswith("ValueError: the source takes tokens, scale")


# --- numbers ----------------------------------------------------------------------------------------


def bars(text: str) -> int:
    """How many bars a plot has; it must be XML."""
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    return sum(each.find(f"{space}title") is not None for each in root.iter(f"{space}rect"))


def results_of(timings: Mapping[str, Sequence[Timing]]) -> Results:
    sizes = tuple(each.sizes for each in next(iter(timings.values())))
    machine = Machine("a CPU", 2, "x86-64-v3", 8 * 10**9, "Linux", 0.1, {"python": "3.11"})
    runtimes = tuple(RuntimeResult(name, timings=tuple(each)) for name, each in timings.items())
    return Results("m.tcpkg", "Net <3>", "m.py", 2, 3, machine, (), sizes, runtimes)


def timing(n: int, *samples: float, right: bool | None = True) -> Timing:
    return Timing({"n": n}, samples=samples, right=right, error=None if right is None else 0.5)


def test_ratios_are_medians_of_rounds_and_only_right_answers_count() -> None:
    results = results_of(
        {
            "bundle": [timing(1, 1.0, 10.0, 1.0), timing(2, 1.0), timing(3, 1.0, right=False)],
            "eager": [timing(1, 2.0, 20.0, 4.0), timing(2, 8.0), timing(3, 9.0)],
            "aoti": [timing(1, 3.0, 30.0, 3.0), timing(2, 0.1, right=False), timing(3, 5.0)],
        }
    )
    assert results.ratio("eager", 0) == 2.0
    assert results.mean_ratio("eager") == (pytest.approx(4.0), 2), "the bundle is wrong at n=3"
    assert results.mean_ratio("aoti") == (pytest.approx(3.0), 1)
    markdown = list(markdown_lines(results))
    assert markdown[3] == "| n=2 | 1.00 s |  | 5e-01 | 8.00 | WRONG, error 5e-01 |"
    assert markdown[4] == "| n=3 | 1.00 s |  | WRONG, 5e-01 | (9.00) | (5.00) |"
    plot = svg(results)
    assert bars(plot) == 6 and ">wrong<" in plot and "Net &lt;3&gt;" in plot
    assert "prefers-color-scheme: dark" in plot


def test_what_was_not_compared_does_not_count() -> None:
    results = results_of({"bundle": [timing(1, 1.0)], "eager": [timing(1, 2.0, right=None)]})
    assert results.mean_ratio("eager") == (None, 0)
    assert any("(2.00x)  not compared" in line for line in text_lines(results))


# --- sizes and inputs -------------------------------------------------------------------------------

HERE = Origin("a test")
CONTRACT = Contract(
    dims=(
        Dim("batch", AxisSource(0, 0), 1, 16, HERE, HERE),
        Dim("seq", AxisSource(0, 1, scale=2), 4, None, HERE, HERE, step=4),
        Dim("k", ValueSource(1), 2, 9, HERE, HERE),
    ),
    parameters=(
        Parameter("ids", "either", Leaf(0)),
        Parameter("k", "either", Leaf(1)),
        Parameter("mask", "either", Leaf(2)),
        Parameter("x", "either", Leaf(3)),
    ),
    inputs=(
        TensorInput("ids", "int64", ("batch", ("*", 2, "seq"))),
        TensorInput("k", "int64", ()),
        TensorInput("mask", "bool", ("batch",)),
        TensorInput("x", "bfloat16", ("batch", 3)),
    ),
    guards=(Guard(("<=", ("*", "batch", "seq"), 1000), HERE),),
    index_guards=(
        IndexGuard(0, 10, ("+", "seq", 10), HERE),
        IndexGuard(0, 0, 11, HERE, (Part(1, 0, 2),)),
    ),
    outputs=(),
    result=TupleNode(()),
)


def test_default_sizes_lie_in_the_contract_and_end_where_calls_are_slow() -> None:
    asked: list[dict[str, int]] = []

    def seconds_at(sizes: dict[str, int]) -> float:
        asked.append(sizes)
        return sizes["batch"] * sizes["seq"] * 1e-3

    example = sizes_of_shapes(CONTRACT, [(3, 16), None, (3,), (3, 3)])
    assert example == {"batch": 3, "seq": 8, "k": 2}
    chosen = default_sizes(CONTRACT, example, seconds_at)
    assert chosen[:2] == [{"batch": 1, "seq": 4, "k": 2}, example]
    assert len(chosen) >= 3 and not any(misfit(CONTRACT, sizes) for sizes in [*chosen, *asked])
    assert max(map(seconds_at, chosen)) < 0.5
    assert sizes_of_shapes(CONTRACT, [(17, 16), None, (17,), (17, 3)]) is None, "not served"


def test_guards_that_admit_nothing_usual_ask_for_sizes() -> None:
    strict = replace_guards(CONTRACT, Guard(("==", "batch", 13), HERE))
    with pytest.raises(UsageError, match="admit none of the usual sizes"):
        default_sizes(strict, None, lambda sizes: 0.0)
    assert parse_sizes("batch=13, seq=4, k=2", strict) == {"batch": 13, "seq": 4, "k": 2}
    with pytest.raises(UsageError, match="the bundle serves batch == 13"):
        parse_sizes("batch=12,seq=4,k=2", strict)
    with pytest.raises(UsageError, match=r"the bundle serves seq=4\.\.:4"):
        parse_sizes("batch=13,seq=6,k=2", strict)


def replace_guards(contract: Contract, *guards: Guard) -> Contract:
    import msgspec

    return msgspec.structs.replace(contract, guards=guards)


@pytest.mark.parametrize("seed", range(5))
def test_inputs_meet_the_index_guards_and_hold_the_values_of_dims(seed: int) -> None:
    sizes = {"batch": 5, "seq": 8, "k": 7}
    inputs = drawn_inputs(CONTRACT, sizes, seed)
    ids = inputs["0"].data
    assert ids.shape == (5, 16) and ids.min() >= 10 and ids.max() <= 18
    assert ids[:, :2].max() <= 11, "where two guards overlap, both hold"
    assert ids[:, 2:].max() > 11, "and elsewhere the whole range is drawn"
    assert int(inputs["1"].data) == 7
    assert inputs["2"].data.dtype == bool and inputs["2"].data.shape == (5,)
    assert (inputs["3"].data.dtype, inputs["3"].dtype) == ("uint16", "bfloat16")
    again = drawn_inputs(CONTRACT, sizes, seed)
    assert all((inputs[name].data == again[name].data).all() for name in inputs)


def test_programs_of_others_are_traced_at_a_size_that_fixes_nothing() -> None:
    chosen = [{"batch": 1, "seq": 4, "k": 2}, {"batch": 1, "seq": 8, "k": 2}]
    assert size_to_trace(CONTRACT, chosen) == {"batch": 2, "seq": 8, "k": 2}


def test_torch_is_told_the_contracts_ranges_and_derived_axes() -> None:
    from tcexport.tools.bench_peers import _dynamic_axes

    ids, k, mask, x = _dynamic_axes(CONTRACT, auto=False)
    assert (ids[0].__name__, ids[0].min, ids[0].max) == ("batch", 1, 16)
    assert ids[1].__name__ == "2*seq" and x[1] is None and k == {} and mask[0] is ids[0]
    auto = _dynamic_axes(CONTRACT, auto=True)[0]
    assert auto[0] is auto[1] and "AUTO" in str(auto[0])


# --- the suite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", _MODELS)
def test_every_model_of_the_suite_says_where_it_is_timed(name: str) -> None:
    root = Path(__file__).parent.parent.parent
    lists = lists_of(root / _MODELS[name])
    promised = {each.partition("=")[0] for each in lists["dynamic"]}
    for sizes in lists["sizes"]:
        assert {each.partition("=")[0] for each in sizes.split(",")} == promised


def test_the_page_holds_what_was_measured_and_says_what_was_not(tmp_path: Path) -> None:
    results = results_of({"bundle": [timing(1, 1.0)], "eager": [timing(1, 2.0)]})
    (tmp_path / "mlp.json").write_text(json.dumps(as_data(replace(results, notes=("a note",)))))
    (tmp_path / "gemm_peak.txt").write_text("m=1 50 %\n")
    text = page(tmp_path)
    assert "`tests/models/text_encoder.py`: not measured yet." in text
    assert "512-2048-2048-512 with exact GELU.\n`tools/benchmarks/mlp.py`; 2 threads" in text
    assert "| n=1 | 1.00 s |" in text and "(benchmarks/mlp.svg)" in text and "a note" in text
    assert "a CPU, 2 cores, x86-64-v3, 8.0 GB" in text and "m=1 50 %" in text


# --- other processors, other bundles -----------------------------------------------------------------

_HIDES = pytest.mark.skipif(
    "cpuid_fault" not in this_machine().flags, reason="this processor cannot hide instructions"
)


@_HIDES
@pytest.mark.parametrize(("level", "seen"), [("x86-64-v3", "AVX2"), ("x86-64-v2", "DEFAULT")])
def test_a_level_hides_what_lies_above_it(tmp_path: Path, level: str, seen: str) -> None:
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment_of(level, tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == seen


@_HIDES
def test_a_benchmark_is_held_to_a_level(folder: Path) -> None:
    held = ("--level", "x86-64-v3", "--rounds", "1", "--sizes", SIZES[0])
    out, _ = run(folder, "bench", "model.tcpkg", *held)
    assert "target: cpu:x86-64-v3" in out and "held to the instructions of x86-64-v3" in out


def test_a_level_that_cannot_be_hidden_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")  # no compiler
    with pytest.raises(UsageError, match="--level x86-64-v3: "):
        environment_of("x86-64-v3", tmp_path)


def test_bundles_stand_beside_each_other(folder: Path) -> None:
    bundle = str(folder / "model.tcpkg")
    command = [sys.executable, "-m", "tcexport.tools.bench_bundles", bundle, bundle]
    done = subprocess.run(
        [*command, "--threads", "1", "--rounds", "2", "--sizes", SIZES[0], "--sizes", SIZES[1]],
        capture_output=True,
        text=True,
        check=True,
    )
    tables = done.stdout.split("\n\n")[1:]
    assert [table.splitlines()[0] for table in tables] == [
        *(each.replace(",", ", ") for each in SIZES),
        "time over the first's, geometric mean",
    ]
    for table in tables:
        first, second = table.splitlines()[1:]
        assert re.fullmatch(r"  model, 1 thread .*1\.00x", first)
        assert re.fullmatch(r"  model, 1 thread .*[0-9]\.[0-9]{2}x", second)


def test_a_bundle_that_cannot_be_timed_is_named(folder: Path, tmp_path: Path) -> None:
    whole = folder / "model.tcpkg"
    damaged = tmp_path / "damaged.tcpkg"
    data = bytearray(whole.read_bytes())
    with open_bundle(whole) as bundle:
        code = bytes(bundle.view(bundle.manifest.targets[0].library))
    data[data.index(code) + len(code) // 2] ^= 1
    damaged.write_bytes(data)
    for bundles, sizes, said in (
        ((whole, damaged), SIZES[0], "Error: damaged, 1 thread: BundleError: error[TC40"),
        ((whole,), "rows=3", "error[TC006] "),
    ):
        command = [sys.executable, "-m", "tcexport.tools.bench_bundles", *map(str, bundles)]
        done = subprocess.run(
            [*command, "--threads", "1", "--sizes", sizes], capture_output=True, text=True
        )
        assert done.returncode and done.stderr.startswith(said)
