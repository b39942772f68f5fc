"""The pages that are generated are those that are kept."""

from __future__ import annotations

from pathlib import Path

from tcexport.artifacts.rules import RULES
from tcexport.tools.docs import diagnostics_page

PAGE = Path(__file__).parents[2] / "docs" / "diagnostics.md"


def test_the_diagnostics_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == diagnostics_page(), (
        "run: python -m tcexport.tools.docs"
    )


def test_every_rule_has_its_heading() -> None:
    page = diagnostics_page()
    assert all(f"### {rule.code}: {rule.title}\n" in page for rule in RULES.values())
