"""What the hosts without Python promise at load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcexport.artifacts.contract import Contract, Guard, TensorInput, TensorOutput
from tcexport.artifacts.errors import TcexportError
from tcexport.artifacts.expr import dims_of
from tcexport.artifacts.manifest import Entry, Target, Variant
from tcexport.runtime import load
from tcexport.tools.fuzz_reader import Seed, described, sealed

from ..attacks.good import CORPUS
from .bundles import GIVEN, LINE, contract_of, dim, pack
from .conftest import WEIGHT
from .test_c import KINDS, c_answers, counted, library, rows  # noqa: F401
from .test_cpp import adds, in_ranges, ranges  # noqa: F401
from .test_guards import conditions

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")

X = np.ones((3, 4), np.float32)


def refusals(library: Path, *loads: tuple[Path, dict[str, Any]]) -> list[str]:  # noqa: F811
    """What both runtimes say to each load, which must be the same; "" where they load it."""
    told = []
    steps = [("load", (str(path), options)) for path, options in loads]
    for (path, options), got in zip(loads, c_answers(library, *steps), strict=True):
        try:
            load(path, **options)
            told.append("")
            assert got == ("done", None)
        except TcexportError as error:
            told.append(str(error))
            assert got == ("error", error.code, str(error), KINDS[error.code[:3]]), options
    return told


def without_tries(text: str) -> str:
    """What to try next is said in each host's own language."""
    return text.partition("\n  try: ")[0]


# --- serves -----------------------------------------------------------------------------------------


def in_steps(path: Path, code: bytes) -> Path:
    """``x[n, 4] + WEIGHT``, n in steps, with guards."""
    terms = contract_of(
        {"x": TensorInput("x", "float32", ("n", 4)), "y": TensorInput("y", "float32", ("m",))},
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 4, 512, step=4, step_from=GIVEN), dim("m", 1, 0, 1, None)],
        guards=(
            Guard(("==", ("%", "n", 8), 0), LINE),
            Guard(("or", ("<=", "n", 256), ("<=", ("*", "n", "m"), 4096)), LINE),
        ),
    )
    return pack(
        path, terms, {"x86-64-v3": code}, {"w": WEIGHT}, entry=Entry("main", (0,), (), ("w",), 1)
    )


def test_ranges_are_proved_or_answered_alike(
    library: Path,  # noqa: F811
    code: bytes,
    tmp_path: Path,
) -> None:
    path = in_steps(tmp_path / "m.tcpkg", code)
    asked: dict[str, dict[str, Any]] = {
        "": {"n": (8, 256, 8)},
        "n=520: n <= 512, from self.position[:seq]  (model.py:14)": {"n": (8, 520, 8)},
        "n=0: n >= 4, from given with --dynamic": {"n": (0, 8, 8)},
        "n=9: n in 4..512:4": {"n": (8, 9)},
        "n=12: n % 8 == 0": {"n": (8, 64, 4), "m": (1, 1)},
        "m=9, n=512: n <= 256 or n*m <= 4096": {"n": (512, 512), "m": (1, 20)},
        "not decided: n <= 256 or n*m <= 4096": {"n": (512, 512)},
        "n=516: n <= 512": {"n": (8, None, 4), "m": (1, 8)},
        "m=0: m >= 1": {"m": (0, None)},
        "[TC006] serves='k': no such dim": {"k": (1, 2)},
        "[TC008] serves['n']=(5, 4): holds no size": {"n": (5, 4)},
        "[TC008] serves['n']=(1, 4, -1): holds no size": {"n": (1, 4, -1)},
    }
    told = refusals(library, *((path, {"serves": each}) for each in asked.values()))
    told += refusals(library, (path, {"serves": {}}))
    for wanted, text in zip([*asked, ""], told, strict=True):
        assert wanted in text and bool(wanted) == bool(text)


def test_each_size_must_be_one_of_a_variant(library: Path, ranges: Path) -> None:  # noqa: F811
    told = refusals(
        library,
        *((ranges, {"serves": {"n": each}}) for each in ((1, 8), (16, 64), (1, 64), (60, 65))),
    )
    assert told[0] == told[1] == ""
    assert "n=9: a variant takes the call" in told[2] and "n=65: n <= 64" in told[3]


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_promise_is_answered_alike(library: Path, tmp_path: Path, data: st.DataObject) -> None:  # noqa: F811
    """Of bundles without code, so that what is served ends in TC404 in both."""
    seed = Seed.read(CORPUS / "small.tcpkg")
    loads = []
    for number in range(40):
        dims, asked = [], {}
        for axis, name in enumerate(("n", "m")):
            lo, step = data.draw(st.integers(-2, 8)), data.draw(st.integers(1, 3))
            hi = data.draw(st.one_of(st.none(), st.integers(lo, lo + 20)))
            steps = {"step": step, "step_from": GIVEN} if step != 1 else {}
            dims.append(dim(name, 0, axis, lo, hi, **steps))
            start = data.draw(st.integers(-2, 9))
            end = data.draw(st.one_of(st.none(), st.integers(start, start + 25)))
            if data.draw(st.booleans()):
                asked[name] = (start, end, data.draw(st.integers(1, 3)))
        exprs = data.draw(st.lists(conditions(["n", "m"]), max_size=3))
        terms = contract_of(
            {"x": TensorInput("x", "float32", ("n", "m"))},
            [TensorOutput("out", "float32", ("n", "m"), 0)],
            dims,
            guards=tuple(Guard(each, LINE) for each in exprs if dims_of(each)),
        )
        head = {**json.loads(seed.head), "contract": msgspec.to_builtins(terms)}
        path = tmp_path / f"{number}.tcpkg"
        path.write_bytes(sealed(described(head, seed.members), seed.members))
        loads.append((path, asked))
    steps = [("load", (str(path), {"serves": asked})) for path, asked in loads]
    for (path, asked), got in zip(loads, c_answers(library, *steps), strict=True):
        with pytest.raises(TcexportError) as caught:
            load(path, serves=asked)
        error = caught.value
        assert got[1] == error.code, (asked, got, str(error))
        assert got[2] == str(error) if error.code == "TC406" else "cannot load" in got[2]


# --- memory_limit -----------------------------------------------------------------------------------


def limited(path: Path, code: bytes, variants: bool, **own: Any) -> Path:
    """``x[n, 4] + WEIGHT`` that says what it needs: 16 bytes a row, by variants maybe."""

    def terms(low: int, high: int) -> Contract:
        return contract_of(
            {"x": TensorInput("x", "float32", ("n", 4))},
            [TensorOutput("out", "float32", ("n", 4), 0)],
            [dim("n", 0, 0, low, high)],
        )

    adds = Entry("main", (0,), (), ("w",), 1)
    few = Variant("few", adds, terms(1, 20), memory=(("*", 8, "n"), ("+", "n", 40)))
    parts = (few, Variant("general", adds, memory=(("*", 16, "n"),)))
    target = Target(
        "cpu", "linux", "x86_64", "x86-64-v3", "2.17", "targets/cpu-x86-64-v3/model.so", **own
    )
    more: dict[str, Any] = {"variants": parts} if variants else {"memory": (("*", 16, "n"),)}
    return pack(
        path,
        terms(2, 64),
        {"x86-64-v3": code},
        {"w": WEIGHT},
        entry=adds,
        targets=(target,),
        **more,
    )


@pytest.mark.parametrize("variants", [False, True])
def test_a_limit_of_memory_is_held_alike(
    library: Path,  # noqa: F811
    code: bytes,
    tmp_path: Path,
    variants: bool,
) -> None:
    path = limited(tmp_path / "m.tcpkg", code, variants)
    adds = Entry("main", (0,), (), ("w",), 1)
    own = limited(tmp_path / "own.tcpkg", code, variants, entry=adds)
    told = refusals(
        library,
        (path, {"memory_limit": 160}),
        (path, {"memory_limit": 160, "serves": {"n": (2, 10)}}),
        (path, {"memory_limit": 160, "serves": {"n": (2, 30)}}),
        (path, {"memory_limit": 8}),
        (path, {"memory_limit": -1}),
        (own, {"memory_limit": 160}),
    )
    assert told[:2] == ["", ""] and "does not serve n=2..30" in told[2]
    assert "bytes at the least" in told[3] and "from 1" in told[4]
    assert "functions than those of cpu" in told[5]
    model = load(path, memory_limit=160)
    calls = [{"x": np.ones((n, 4), np.float32)} for n in (2, 10, 11, 20, 21, 30, 65)]
    answers = c_answers(
        library, ("load", (str(path), {"memory_limit": 160})), *(("call", each) for each in calls)
    )
    codes = []
    for inputs, got in zip(calls, answers[1:], strict=True):
        try:
            out = model(**inputs)
            codes.append("")
            np.testing.assert_array_equal(dict(got[1])["out"], out)
        except TcexportError as error:
            codes.append(error.code)
            assert got == ("error", error.code, str(error), 4)
    beyond = "TC320" if variants else "TC307"
    assert codes == ["", "", *(["", ""] if variants else [beyond] * 2), beyond, beyond, "TC301"]


# --- variant and device -----------------------------------------------------------------------------


def test_one_variant_can_be_asked_for_alone(
    library: Path,  # noqa: F811
    code: bytes,
    ranges: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    own = in_ranges(tmp_path / "own.tcpkg", code, entries=(adds("u"), adds("v")))
    for path, name, sizes in (
        (ranges, "few", (0, 1, 8, 9, 20)),
        (ranges, "many", (1, 15, 16, 65)),
        (own, "many", (12, 20)),
        (ranges, None, (1, 8, 12, 20)),
    ):
        asked = {} if name is None else {"variant": name}
        model, codes = load(path, **asked), []
        steps: list[tuple[str, Any]] = [("load", (str(path), asked))]
        for n in sizes:
            steps += [("call", rows(n)), ("variant", None)]
        answers = c_answers(library, *steps, ("metrics", None))
        for n, got, served in zip(sizes, answers[1::2], answers[2::2], strict=False):
            try:
                out = model(**rows(n))
            except TcexportError as error:
                codes.append(error.code)
                assert got == ("error", error.code, str(error), 4)
            else:
                codes.append("")
                np.testing.assert_array_equal(dict(got[1])["out"], out)
                assert served == ("done", name or ("few" if n < 9 else "many"))
        assert counted(answers[-1])["variants"] == dict(model.metrics.variants)
        assert codes == (
            ["", "", "TC320", ""] if name is None
            else [{"few": ["TC301", "", "", "TC301", "TC301"],
                   "many": ["TC301", "TC301", "", "TC301"]}[name], ["TC301", ""]][path == own]
        )  # fmt: skip


def test_what_is_no_variant_is_told_alike(
    library: Path,  # noqa: F811
    code: bytes,
    added: Path,
    ranges: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    whole = in_ranges(tmp_path / "all.tcpkg", code, low=None, entry=adds("v"))
    loads = [(ranges, "fewer"), (ranges, ""), (ranges, "it's"), (added, "general"), (whole, "few")]
    steps = [("load", (str(path), {"variant": name})) for path, name in loads]
    codes = []
    for (path, name), got in zip(loads, c_answers(library, *steps), strict=True):
        with pytest.raises(TcexportError) as caught:
            load(path, variant=name)
        codes.append(caught.value.code)
        # Python says, too, which variant may have been meant; which there are is told by both.
        assert got[1] == caught.value.code
        assert without_tries(got[2]) == without_tries(str(caught.value))
    assert codes == ["TC006"] * 4 + ["TC404"]  # its one function is that of no variant
    told = refusals(
        library,
        (ranges, {"variant": "few", "serves": {"n": (1, 8)}}),
        (ranges, {"variant": "few", "serves": {"n": (1, 20)}}),
        (ranges, {"variant": "many", "serves": {"n": (1, 20)}}),
    )
    assert told[0] == "" and "n=9: n <= 8" in told[1] and "n=1: n >= 16" in told[2]


def test_a_limit_is_held_by_the_variant_that_is_asked_for(
    library: Path,  # noqa: F811
    code: bytes,
    tmp_path: Path,
) -> None:
    path = limited(tmp_path / "m.tcpkg", code, variants=True)
    for name in ("few", "general"):
        asked = {"variant": name, "memory_limit": 160}
        model, sizes = load(path, **asked), (2, 10, 11, 20, 21)
        steps = [("load", (str(path), asked)), *(("call", rows(n)) for n in sizes)]
        codes = []
        for n, got in zip(sizes, c_answers(library, *steps)[1:], strict=True):
            try:
                model(**rows(n))
                codes.append("")
                assert got[0] == "done"
            except TcexportError as error:
                codes.append(error.code)
                assert got == ("error", error.code, str(error), 4)
        beyond = ["", "", "TC301"] if name == "few" else ["TC320"] * 3
        assert codes == ["", "", *beyond]
    least = refusals(library, (path, {"variant": "general", "memory_limit": 8}))[0]
    assert "needs 32 bytes at the least" in least


def test_gpus_are_refused_and_never_passed_over(library: Path, tmp_path: Path, added: Path) -> None:  # noqa: F811
    """Where a bundle has code for GPUs, the CPU serves it only where no GPU is asked for."""
    seed = Seed.read(added)
    head = json.loads(seed.head)
    gpu = {**head["targets"][0], "name": "cuda:sm_90", "cuda": {
        "architectures": ["sm_90"], "ptx": "", "driver": "13.0", "ptx_driver": "",
        "compiler": "nvcc", "kernels": []}}  # fmt: skip
    both, alone = tmp_path / "both.tcpkg", tmp_path / "alone.tcpkg"
    for path, targets in ((both, [*head["targets"], gpu]), (alone, [gpu])):
        path.write_bytes(
            sealed(described({**head, "targets": targets}, seed.members), seed.members)
        )
    here = "this host runs on the CPU alone"
    loads: list[tuple[Path, str | None, str]] = [
        (added, None, ""), (added, "cpu", ""), (added, "auto", ""),
        (added, "cuda", "=cpu alone"), (added, "cuda:1", "=cpu alone"), (added, "gpu", "=no such"),
        (added, "", "=no such"), (added, "cuda:x", "=no such"), (added, "cuda:12345", "=no such"),
        (both, None, ""), (both, "cpu", ""), (both, "auto", here), (both, "cuda", here),
        (alone, None, "device='cpu': "), (alone, "cpu", "=GPUs alone"), (alone, "auto", here),
        (alone, "cuda:0", here), (alone, "tpu", "=no such"),
    ]  # fmt: skip
    steps = [
        ("load", (str(path), {} if device is None else {"device": device}))
        for path, device, _ in loads
    ]
    for (path, device, wanted), got in zip(loads, c_answers(library, *steps), strict=True):
        if not wanted:
            assert got == ("done", None), (path, device, got)
            continue
        assert got[1] == "TC407" and got[3] == 3, (path, device, got)
        assert wanted.strip("=").lower() in got[2].lower() or wanted == "=cpu alone", got
        if wanted.startswith("="):  # of what needs no GPU, Python says the same
            with pytest.raises(TcexportError, match="TC407") as caught:
                load(path, device=device or "")
            assert without_tries(got[2]) == without_tries(str(caught.value))
        assert "\n  try: " in got[2]
