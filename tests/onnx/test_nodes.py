"""The node tests that ship with onnx: none gives another answer, none crashes; `make zoo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcexport.tools.onnx_nodes import PAGE, Outcome, bundled, cases, outcome, section

pytestmark = pytest.mark.zoo


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    folder = tmp_path_factory.mktemp("nodes")
    return [outcome(case, folder) for case in cases()]


def test_each_is_equal_or_refused(outcomes: list[Outcome]) -> None:
    assert len(outcomes) > 1500
    assert not [(each.name, each.said) for each in outcomes if each.verdict in ("wrong", "crashed")]
    assert not [each.name for each in outcomes if each.verdict == "refused" and not each.said]


def test_the_page_says_what_became_of_them(outcomes: list[Outcome]) -> None:
    assert section(outcomes) in (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")


def test_a_bundle_of_each_operator_gives_the_same(outcomes: list[Outcome]) -> None:
    first = {each.operator: each for each in reversed(outcomes) if each.path is not None}
    made = [bundled(each) for each in first.values()]
    assert sum(each.verdict == "equal" for each in made) > 150
    assert not [(each.name, each.said) for each in made if each.verdict in ("wrong", "crashed")]
