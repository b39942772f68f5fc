"""Every op that torch lists samples for: equal to eager on them, or refused by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from .conftest import Record
from .opinfo import outcome

RECORD = Path(__file__).parent / "opinfo.json"

# Of each family one, in every run; all of them are `zoo`.
ALWAYS = frozenset(
    {
        *("add", "clamp", "where", "softmax.with_dtype", "sum", "argmax", "cat", "gather"),
        *("index_put", "mm", "nn.functional.avg_pool2d", "searchsorted", "sort", "cumsum"),
    }
)


def _name(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _parameters() -> Iterator[Any]:
    for op in op_db:
        marks = () if _name(op) in ALWAYS else (pytest.mark.zoo,)
        yield pytest.param(op, id=_name(op), marks=marks)


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """What each op's samples came to, as the last recording has it."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))
    yield known
    if request.config.getoption("--record-ops"):
        text = json.dumps(dict(sorted(known.items())), indent=1)
        RECORD.write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize("op", list(_parameters()))
def test_samples_equal_eager_or_are_refused(
    op: OpInfo, record: Record, outcomes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    found = outcome(op, record.see)
    assert not found.wrong, "\n".join(found.wrong)
    told = {key: value for key, value in dataclasses.asdict(found).items() if key != "wrong"}
    if request.config.getoption("--record-ops"):
        outcomes[_name(op)] = told
    # What equaled eager once is not to be refused without a word.
    assert outcomes.get(_name(op), told) == told, "run pytest tests/lowering --record-ops"


def test_the_families_of_every_run_are_ops() -> None:
    assert {_name(op) for op in op_db} >= ALWAYS
    assert json.loads(RECORD.read_text(encoding="utf-8")).keys() >= ALWAYS
