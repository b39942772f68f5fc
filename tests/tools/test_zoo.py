"""The zoo's own parts: how rows are found and written down, what a row's outcome is, the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from tcexport.tools import zoo
from tcexport.tools.zoo_page import recorded, write_page
from tcexport.tools.zoo_row import Outcome, run_row
from tcexport.tools.zoo_rows import (
    Row,
    axes_of,
    draw,
    example_sizes,
    floats,
    ids,
    mask,
    row,
    sizes_inside,
    sizes_outside,
)

DIMS = {"batch": (1, 4), "height": (8, 64, 8)}


def test_there_are_60_rows_and_each_has_a_name_of_its_own() -> None:
    names = [each.name for each in zoo.names()]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


def test_every_row_is_in_one_quarter_but_the_slow_ones() -> None:
    rows = zoo.names()
    quarters = [zoo.quarter(rows, commit) for commit in ("0a4", "0a5", "0a6", "0a7")]
    found = sorted(each.name for part in quarters for each in part)
    assert found == sorted(each.name for each in rows if not each.slow)
    assert zoo.quarter(rows, "81c1584") == zoo.quarter(rows, "81c1584")


def test_sizes_hold_both_ends_and_outside_lies_outside() -> None:
    inside = sizes_inside(DIMS)
    assert {"batch": 1, "height": 8} in inside and {"batch": 4, "height": 64} in inside
    assert len(inside) >= 3
    for sizes in (*inside, example_sizes(DIMS)):
        assert 1 <= sizes["batch"] <= 4 and sizes["height"] in range(8, 65, 8)
    for sizes in sizes_outside(DIMS):
        assert not (1 <= sizes["batch"] <= 4 and sizes["height"] in range(8, 65, 8))


def test_nested_inputs_are_drawn_and_their_axes_named_by_path() -> None:
    inputs = {"x": floats("n", 3), "more": [ids("n", "2*n"), {"m": mask(2, "n")}], "flag": True}
    call = draw(inputs, {"n": 5}, seed=1)
    assert call["x"].shape == (5, 3) and call["more"][0].shape == (5, 10) and call["flag"] is True
    assert call["more"][1]["m"].min(dim=1).values.tolist() in ([0, 0], [0, 1], [1, 0], [1, 1])
    assert call["more"][1]["m"][:, 0].tolist() == [1, 1]
    assert dict(axes_of(inputs)) == {
        "x": ("n", None),
        "more[0]": ("n", "2*n"),
        "more[1].m": (None, "n"),
    }


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 2 else x * 3


@row(batch=(1, 4))
def scale() -> Row:
    return Scale(), {"x": floats("batch", 3)}


@row(batch=(1, 4))
def branch() -> Row:
    return Branch(), {"x": floats("batch", 3)}


def test_a_row_is_compared_with_eager_and_called_outside() -> None:
    outcome = run_row(scale)
    assert (outcome.status, outcome.reason, outcome.sizes, outcome.outside) == ("ok", "", 3, 2)
    assert outcome.megabytes > 0 and outcome.seconds > 0


def test_a_row_whose_results_hang_on_no_input_shows_nothing() -> None:
    class Vanishing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1e-9

    @row(batch=(1, 4))
    def vanishing() -> Row:
        return Vanishing(), {"x": floats("batch", 3)}

    outcome = run_row(vanishing)
    assert outcome.status == "wrong" and "shows nothing" in outcome.reason


def test_a_refusal_tells_code_and_line() -> None:
    outcome = run_row(branch, lower_only=True)
    assert outcome.status == "refused"
    assert "TC210" in outcome.reason and "test_zoo.py:" in outcome.reason


def test_wrong_numbers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model changes after its export, so that the bundle is not what it says."""

    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    made = Moved()

    @row(batch=(1, 4))
    def moved() -> Row:
        return made, {"x": floats("batch", 3)}

    from tcexport.exporter import export

    original = export.export

    def changed(*args: object, **options: object) -> object:
        report = original(*args, **options)  # type: ignore[arg-type]
        with torch.no_grad():
            made.weight.add_(1)
        return report

    monkeypatch.setattr(export, "export", changed)
    outcome = run_row(moved)
    assert outcome.status == "wrong" and "output 0 is off by" in outcome.reason


ROWS = """
import os
from tcexport.tools.zoo_rows import row

@row(batch=(1, 2))
def falls():
    os.abort()

@row(batch=(1, 2))
def hangs():
    while True:
        pass

@row(slow=True, batch=(1, 2))
def raises():
    raise RuntimeError("no such model")
"""


def test_a_row_that_crashes_or_hangs_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.py").write_text(ROWS)
    monkeypatch.setattr(zoo, "ROWS", tmp_path)
    monkeypatch.setattr(zoo, "PAGE", tmp_path / "zoo.md")
    ends = CliRunner().invoke(zoo.main, ["falls", "raises"])
    assert ends.exit_code == 1
    assert "killed by signal 6" in ends.output
    assert "RuntimeError: no such model" in ends.output
    hangs = CliRunner().invoke(zoo.main, ["hangs", "--limit", "8"])
    assert hangs.exit_code == 1
    assert "no end within 8 s" in hangs.output
    assert recorded(tmp_path / "zoo.md") == dict.fromkeys(("falls", "hangs", "raises"), "crash")


def test_the_page_keeps_the_rows_that_did_not_run(tmp_path: Path) -> None:
    page, families = tmp_path / "zoo.md", {"one": "first", "two": "second_family"}
    refused = Outcome("refused", "TC501 aten.x <b> (m.py:3)")
    write_page(page, {"one": Outcome("ok", sizes=3), "two": refused}, families)
    write_page(page, {"two": Outcome("ok", sizes=4)}, families)
    assert recorded(page) == {"one": "ok", "two": "ok"}
    write_page(page, {"one": refused}, families)
    assert recorded(page) == {"one": "refused", "two": "ok"}
    text = page.read_text()
    assert "2 rows: 1 ok, 1 refused, 0 wrong or crashed." in text
    assert "## Second family" in text and "\\<b\\>" in text


def test_a_row_that_was_ok_must_be_ok_in_its_quarter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"a": Outcome("refused", "TC501")}
    assert zoo.worse(refused, {"a": "ok"}) == ["a"]
    assert zoo.worse(refused, {"a": "refused"}) == []
    assert zoo.worse({"a": Outcome("ok")}, {"a": "refused"}) == []
