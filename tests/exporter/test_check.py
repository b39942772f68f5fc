"""`check`: all that an export would say, by the same code, without compiling."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop

import tcexport
from tcexport.artifacts.errors import Location
from tcexport.exporter.advice import Advice, advise
from tcexport.exporter.families import FAMILIES
from tcexport.exporter.source import source_in_memory

ROWS = torch.randn(3, 6)
AXES = {"x": ("rows", None)}


class Refused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.unit = nn.Sequential(nn.Linear(6, 6), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.unit(self.first(x))
        y = x.mode(1).values + (x + 1).mode(1).values
        return y + torch.trapezoid(x).histc(4).sum()


def test_what_cannot_be_lowered_is_what_an_export_says_word_for_word(tmp_path: Path) -> None:
    module = Refused().eval()
    found = tcexport.check(module, (ROWS,), axes=AXES, dynamic={"rows": None})
    with pytest.raises(tcexport.ExportError) as error:
        tcexport.export(
            module, (ROWS,), axes=AXES, dynamic={"rows": None}, out=tmp_path / "m.tcpkg"
        )
    assert found.errors == error.value.diagnostics
    assert {each.code for each in found.errors} == {"TC501"} and len(found.errors) == 2
    assert [dim.name for dim in found.dims] == ["rows"], "the contract is there all the same"
    assert not [name for name, _ in found.stages if name.startswith(("compile for", "link for"))]
    assert "convert" in dict(found.stages)


def test_each_op_has_a_row_with_its_count_module_and_line() -> None:
    found = tcexport.check(Refused().eval(), (ROWS,), axes=AXES, dynamic={"rows": None})
    rows = {each.op: each for each in found.ops}
    refused = [each for each in found.ops if not each.supported]
    assert {each.op for each in refused} == {"aten.mode.default", "aten.histc.default"}
    mode = rows["aten.mode.default"]
    assert (mode.count, mode.module) == (2, "")
    assert isinstance(mode.location, Location) and "x.mode(1)" in mode.location.text
    assert "one_hot" in rows["aten.histc.default"].tries
    linear = rows["aten.linear.default"]
    assert (linear.count, linear.fast, linear.module, linear.supported) == (2, 2, "first", True)
    # torch.utils.flop_counter: two for each of rows x 6 x 6, at the three rows of the example
    assert linear.flops == linear.fast_flops == 2 * (2 * 3 * 6 * 6)
    assert rows["aten.relu.default"].fast == 1, "it is a part of the linear's kernel"
    assert rows["aten.add.Tensor"].fast == 0


class Arms(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 8:
            return x.mode(1).values + x.sum(1)
        return x.cumsum(1).sum(1)


def test_variants_and_arms_are_looked_at_as_an_export_does(tmp_path: Path) -> None:
    module, options = Arms().eval(), {"axes": AXES, "cover": {"rows": (1, 64)}}
    found = tcexport.check(module, (ROWS,), specialize={"rows": 4}, **options)
    with pytest.raises(tcexport.ExportError) as error:
        tcexport.export(module, (ROWS,), specialize={"rows": 4}, out=tmp_path / "m", **options)
    assert found.errors == error.value.diagnostics, "the other arm has an op that is not lowered"
    assert {each.code for each in found.errors} == {"TC501"}
    assert found.variants == ("rows=4", "rows=1..8", "rows=9..64")
    assert [(dim.lo, dim.hi) for dim in found.dims] == [(1, 64)]
    beyond = tcexport.check(module, (ROWS,), specialize={"rows": 65}, **options)
    assert [each.code for each in beyond.errors] == ["TC220"] and beyond.contract is None
    with pytest.raises(tcexport.UsageError) as refused:
        tcexport.check(module, (ROWS,), axes=AXES, targets=("cpu:x86-64-v9",))
    assert refused.value.code == "TC506"


def test_a_variant_beyond_the_trace_names_the_line_that_limits_it_once() -> None:
    found = tcexport.check(
        Arms().eval(), (ROWS,), axes=AXES, dynamic={"rows": None}, specialize={"rows": 9}
    )
    (beyond,) = found.errors
    assert beyond.code == "TC220" and "rows=9 is not served: rows is 1..8" in beyond.message
    assert beyond.location is not None and "if x.shape[0] > 8:" in beyond.location.text
    assert beyond.notes == (), "the line is told as the location"


def test_the_log_tells_the_guards_of_values_by_the_names_of_the_inputs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(30, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids)

    tcexport.set_logs(guards=True)
    try:
        found = tcexport.check(
            Looked().eval(), (torch.arange(5),), axes={"ids": ("n",)}, dynamic={"n": None}
        )
    finally:
        tcexport.set_logs()
    assert not found.errors
    told = capsys.readouterr().err
    assert "0 <= ids <= 29, each value  from: return self.table(ids)" in told


def test_what_needs_no_computing_is_told_apart() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.exp()

    rows = {each.op: each for each in tcexport.check(Folded().eval(), (ROWS,)).ops}
    assert (rows["aten.exp.default"].folded, rows["aten.mul.Tensor"].folded) == (1, 0)


def test_a_reason_is_in_the_users_dims() -> None:
    class Ordered(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.as_strided((x.shape[0], 2), (6, 1))

    found = tcexport.check(Ordered().eval(), (ROWS,), axes=AXES, dynamic={"rows": None})
    assert found.errors
    for each in found.errors:
        assert "s77" not in each.render() and "s0" not in each.render(), each.render()


def test_a_model_that_has_no_trace_is_refused_as_data() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("both")
            return x if x.sum() > 0 else -x

    found = tcexport.check(Branch().eval(), (ROWS,))
    assert [each.code for each in found.errors] == ["TC102"]
    assert [each.code for each in found.notes] == ["TC110"]
    assert found.contract is None and found.ops == () and found.dims == ()


# --- the graph ------------------------------------------------------------------------------------


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, batch: dict[str, torch.Tensor], k: int = 2) -> dict[str, object]:
        x = self.layer(batch["x"]) * self.scale
        x = torch.cat([x, x], 0)
        values, _ = x.sort(dim=0)
        places = torch.nonzero(batch["x"])
        return {"values": values, "places": places, "rows": batch["x"].shape[0] + k}


def test_the_graph_is_in_the_users_names_with_source_lines() -> None:
    axes = {"batch.x": ("rows", None)}
    found = tcexport.check(
        Joined().eval(), ({"x": ROWS},), axes=axes, dynamic={"rows": None}, graph=True
    )
    assert found.graph is not None
    lines = [line for line in found.graph.splitlines() if "assert" not in line]
    said = [re.sub(r"# .*test_check\.py:\d+   ", "# ", line) for line in lines]
    assert said == [
        "parameter layer.weight: float32[4, 6]",
        "parameter layer.bias: float32[4]",
        "buffer scale: float32[4]",
        "input batch.x: float32[rows, 6]",
        "input k = 2",
        '# x = self.layer(batch["x"]) * self.scale',
        "linear: float32[rows, 4] = aten.linear(batch.x, layer.weight, layer.bias)",
        "mul: float32[rows, 4] = aten.mul.Tensor(linear, scale)",
        "# x = torch.cat([x, x], 0)",
        "cat: float32[2*rows, 4] = aten.cat([mul, mul])",
        "# values, _ = x.sort(dim=0)",
        "sort: (float32[2*rows, 4], int64[2*rows, 4]) = aten.sort(cat, 0)",
        "getitem: float32[2*rows, 4] = sort[0]",
        '# places = torch.nonzero(batch["x"])',
        "nonzero: int64[size of nonzero, 2] = aten.nonzero(batch.x)",
        "output values = getitem",
        "output places = nonzero",
        "output rows = rows + 2",
    ]
    assert not re.search(r"\b[su]\d+\b", found.graph)
    assert tcexport.check(Joined().eval(), ({"x": ROWS},)).graph is None


def test_the_graph_shows_what_stands_in_a_loop() -> None:
    class Loops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = torch.zeros((), dtype=torch.int64)
            step = while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x.sin()), (n, x))
            return step[1]

    found = tcexport.check(Loops().eval(), (ROWS,), axes=AXES, dynamic={"rows": None}, graph=True)
    assert found.graph is not None and "arg0_1" not in found.graph
    lines = found.graph.splitlines()
    first = lines.index("graph while_loop_body_graph_0:")
    assert lines[first + 1 : first + 3] == [
        "  input operand0: int64[]",
        "  input operand1: float32[rows, 6]",
    ]
    assert "  sin: float32[rows, 6] = aten.sin(operand1)" in lines
    assert not found.errors


# --- levels ---------------------------------------------------------------------------------------


class Talks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("called")
        return x * float(os.environ.get("SCALE", "3"))


def test_a_note_is_raised_or_silenced_by_its_code(tmp_path: Path) -> None:
    module = Talks().eval()
    found = tcexport.check(module, (ROWS,))
    assert {(each.code, each.severity) for each in found.notes} == {
        ("TC110", "note"),
        ("TC106", "warning"),
    }
    assert not found.errors
    silent = tcexport.check(module, (ROWS,), allow="TC110")
    assert [each.code for each in silent.notes] == ["TC106"]
    raised = tcexport.check(module, (ROWS,), error=["tc110,TC106"])
    assert {each.code for each in raised.errors} == {"TC110", "TC106"} and not raised.notes
    with pytest.raises(tcexport.ExportError) as error:
        tcexport.export(module, (ROWS,), out=tmp_path / "m.tcpkg", error=["TC106"])
    assert error.value.code == "TC106"
    assert {each.severity for each in error.value.diagnostics} == {"error", "note"}
    assert not list(tmp_path.iterdir())


def test_what_a_refusal_says_beside_it_has_its_level_too() -> None:
    class Both(Talks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum() > 0 else x

    found = tcexport.check(Both().eval(), (ROWS.abs(),), allow=["TC110"], error=["TC106"])
    assert {each.code for each in found.errors} == {"TC102", "TC106"}
    assert not found.notes


@pytest.mark.parametrize("code", ["TC106", "TC102", "TC501", "TC504", "TC105"])
def test_no_wrong_answer_can_be_silenced(code: str) -> None:
    with pytest.raises(tcexport.UsageError, match="cannot be silenced") as error:
        tcexport.check(Talks().eval(), (ROWS,), allow=[code])
    assert error.value.code == "TC013"


def test_families_and_registry_agree_on_the_level_of_a_code() -> None:
    from tcexport.artifacts.rules import RULES

    levels = {"note": "note", "warning": "warn"}
    mild = [each for each in FAMILIES.values() if each.severity != "error"]
    assert mild
    for each in mild:
        assert levels[each.severity] == RULES[each.code].level


# --- logs -----------------------------------------------------------------------------------------


def test_an_export_and_a_load_tell_what_they_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4)
            self.register_buffer("position", torch.ones(64, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * 2 if x.shape[0] == 1 else x * 3
            return self.layer(x.view(x.shape[0], -1)) + self.position[: x.shape[0]]

    monkeypatch.setenv("TCEXPORT_LOGS", "guards,dynamic,variants,lowering")
    path = tmp_path / "m.tcpkg"
    tcexport.export(
        Table().eval(), (ROWS,), axes=AXES, dynamic={"rows": None}, out=path, targets=("cpu",)
    )
    tcexport.load(path)
    said = capfd.readouterr().err
    assert re.search(r"\[tcexport variants\] traced again with rows=1", said)
    assert re.search(r"\[tcexport dynamic\] rows: asked 1\.\., found 2\.\.64, limited by", said)
    assert re.search(r"\[tcexport guards\] rows <= 64  from: .*held by the ranges", said)
    assert re.search(
        r"\[tcexport lowering\] aten\.linear\.default, 1 uses: 1 by a kernel of ours, first at",
        said,
    )
    assert re.search(r"\[tcexport lowering\] compile for x86-64-v3: \d", said)
    assert len(re.findall(r"\[tcexport variants\] built cpu:x86-64-v[34], \d+ bytes", said)) == 2
    assert re.search(r"\[tcexport variants\] .*m\.tcpkg: took .* of .*, ", said)


# --- advice ---------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.table(ids)).relu()).softmax(-1).sum(0)


def advised(module: nn.Module, x: torch.Tensor, bench: Path | None = None) -> Advice:
    names = {"x": ("rows", *[None] * (x.dim() - 1))}
    if isinstance(module, Mlp):
        names = {"ids": ("rows",)}
    found = tcexport.check(module.eval(), (x,), axes=names, dynamic={"rows": None}, bench=bench)
    assert found.advice is not None and not found.errors
    assert len(found.advice.lines) <= 3
    return found.advice


def test_advice_is_made_of_counted_facts() -> None:
    found = advised(Mlp(), torch.arange(5))
    assert found.parameters == 30 * 8 + 8 * 16 + 16 + 16 * 4
    assert (found.ops, found.fast_ops, found.data_ops) == (6, 4, 0)
    assert found.flops == found.fast_flops == 2 * 5 * (8 * 16 + 16 * 4)
    assert (found.sizes, found.data_checks) == ({"rows": 5}, 1)
    assert found.lines == (
        "a call is 6 ops (4 in kernels of ours) and 1.92 kFLOP at rows=5, 100 % of it in kernels of "
        "ours; 448 parameters; values are looked at in 1 place",
        "the gain was not measured: `tcexport bench` measures it",
    )


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x + 1, "too small to gain"),
        (lambda x: torch.nonzero(x).float().exp().sin().cos().sum(), "too data-dependent to gain"),
        (lambda x: x.exp().sin().cos().tan().sum(), "no op is in a kernel of ours"),
    ],
)
def test_advice_says_plainly_what_will_not_gain(function: Any, said: str) -> None:
    class Of(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    assert said in advised(Of(), ROWS).lines[-1]


def test_advice_quotes_a_benchmark_of_this_source_alone(tmp_path: Path) -> None:
    bench = tmp_path / "m.bench.json"
    eager = {"name": "eager", "mean_ratio": {"geometric_mean": 2.5, "sizes": 3}}
    data = {"model": "Mlp", "source_sha256": "", "runtimes": [{"name": "bundle"}, eager]}
    bench.write_text(json.dumps(data))
    args, names = (torch.arange(5),), {"ids": ("rows",)}
    checked = tcexport.check(Mlp().eval(), args, axes=names, bench=bench)
    assert checked.advice is not None and checked.contract is not None
    gain = checked.advice.gain
    assert gain is not None and (gain.over_eager, gain.sizes) == (2.5, 3)
    assert checked.advice.lines[1].startswith(
        "measured: eager takes 2.5 times as long as the bundle (geometric mean over 3 sizes"
    )
    source = source_in_memory(Mlp().eval(), args, {}, names)
    eager["mean_ratio"] = {"geometric_mean": 0.8, "sizes": 1}
    for text, said in (
        (json.dumps(data), "it does not gain: eager was not slower"),
        (json.dumps({**data, "source_sha256": "0" * 64}), "measured another version of the source"),
        (json.dumps({**data, "runtimes": []}), "has no comparison with eager"),
        ("[]", "is not what `tcexport bench -o` writes"),
    ):
        bench.write_text(text)
        found = advise(source, checked.ops, checked.contract, {}, bench)
        assert any(said in line for line in found.lines)
        assert (found.gain is None) == ("not gain" not in said)


def test_what_is_refused_gets_no_advice() -> None:
    assert tcexport.check(Refused().eval(), (ROWS,)).advice is None
