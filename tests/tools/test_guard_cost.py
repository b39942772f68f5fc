"""`tools.guard_cost`: every check that it times takes its call, and goes where it says."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tcexport.tools import guard_cost


def test_each_check_is_timed() -> None:
    done = CliRunner().invoke(guard_cost.command)
    assert done.exit_code == 0
    assert len(done.output.splitlines()) == 5
    assert all(float(line.split()[0]) > 0 for line in done.output.splitlines())


def test_a_refused_call_has_no_time() -> None:
    with pytest.raises(ValueError, match="refused"):
        guard_cost.dispatched(1025)


@pytest.mark.parametrize(("seq", "part"), [(16, 0), (512, 5), (128, 6)])
def test_a_call_is_timed_to_the_code_that_is_named(
    monkeypatch: pytest.MonkeyPatch, seq: int, part: int
) -> None:
    found = []
    monkeypatch.setattr(guard_cost, "_timed", lambda check, flat: found.append(check(flat)) or 0.0)
    guard_cost.dispatched(seq)
    assert found == [(4, seq, part)]
