"""The pages that are generated are those that are kept."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from tcexport.artifacts.rules import RULES, related
from tcexport.lowering import lower, worker
from tcexport.tools.docs import examples, pages

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "diagnostics"


def _run_worker_here(request: Path, progress: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):  # where it tells its stages
        worker.main(str(request))


def test_the_pages_of_diagnostics_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiler's code in this process: TVM is loaded once, not for every example.
    monkeypatch.setattr(lower, "_run_worker", _run_worker_here)
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("SCALE", raising=False)
    wanted = pages()
    assert {each.name for each in PAGES.iterdir()} == wanted.keys()
    old = [
        name for name, text in wanted.items() if (PAGES / name).read_text(encoding="utf-8") != text
    ]
    assert not old, "run: python -m tcexport.tools.docs"


def test_each_example_gets_the_code_of_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for code in examples():
        text = (PAGES / f"{code}.md").read_text(encoding="utf-8")
        assert f"[{code}] " in text.partition("## Mended")[0], code


def test_every_rule_has_a_page_and_relatives_that_have_one() -> None:
    for rule in RULES.values():
        assert (PAGES / f"{rule.code}.md").is_file()
        assert rule.code not in related(rule.code) and set(related(rule.code)) <= RULES.keys()
