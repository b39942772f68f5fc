"""docs/ops.md says what the registry and the tests say."""

from __future__ import annotations

import json
from pathlib import Path

from tcexport.tools.ops import PAGE, RECORD, SAMPLES, page

ROOT = Path(__file__).parents[2]


def test_the_page_of_ops_is_up_to_date() -> None:
    tested, sampled = (
        json.loads((ROOT / path).read_text(encoding="utf-8")) for path in (RECORD, SAMPLES)
    )
    kept = (ROOT / PAGE).read_text(encoding="utf-8")
    assert kept == page(tested, sampled), "run: python -m tcexport.tools.ops"
