"""What happens to a refused call: the user's own answer, counts by guard, and a log."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcexport.artifacts.errors import GuardError, UsageError
from tcexport.runtime import load

from .conftest import WEIGHT


def rows(count: int) -> np.ndarray:
    return np.ones((count, 4), np.float32)


def test_the_users_function_answers_refused_calls(added: Path) -> None:
    asked: list[tuple[Any, Any, GuardError]] = []

    def eager(args: Any, kwargs: Any, error: GuardError) -> Any:
        asked.append((args, kwargs, error))
        return args[0] + WEIGHT if args else kwargs["x"] + WEIGHT

    model = load(added, on_violation=eager)
    np.testing.assert_array_equal(model(rows(3)), rows(3) + WEIGHT)
    assert not asked, "a call inside of the contract is the bundle's"
    np.testing.assert_array_equal(model(rows(65)), rows(65) + WEIGHT)
    np.testing.assert_array_equal(model(x=rows(70)), rows(70) + WEIGHT)
    (args, _, first), (_, kwargs, _) = asked
    assert args[0].shape == (65, 4) and kwargs["x"].shape == (70, 4)
    assert first.code == "TC301" and first.argument == "x"
    assert model.metrics.calls == 1
    assert model.metrics.violations == {"TC301": 2}


def test_what_the_users_function_raises_comes_through(added: Path) -> None:
    def fails(args: Any, kwargs: Any, error: GuardError) -> Any:
        raise LookupError("no fallback") from error

    with pytest.raises(LookupError, match="no fallback"):
        load(added, on_violation=fails)(rows(65))
    with pytest.raises(UsageError, match="on_violation"):
        load(added, on_violation="warn")  # type: ignore[arg-type]


def test_violations_are_counted_by_guard_whatever_the_values(gathered: Path) -> None:
    model = load(gathered)
    for ids in ([[512]], [[-1]], [[1, 10**6]]):
        with pytest.raises(GuardError):
            model(np.array(ids))
    for size in (9, 10, 11):
        with pytest.raises(GuardError):
            model(np.zeros((size, 1), np.int64))
    for name in ("a", "b", "c"):
        with pytest.raises(GuardError):
            model(**{name: 1})
    assert model.metrics.guards == {
        "ids: 0 <= each value <= 511": 3,
        "ids axis 0 (b): b <= 8": 3,
        "the arguments and their structure": 3,
    }


def test_the_log_names_guards_at_load_and_at_violations(gathered: Path) -> None:
    script = (
        "import sys, numpy as np\n"
        "from tcexport.runtime import load\n"
        "model = load(sys.argv[1], on_violation=lambda args, kwargs, error: None)\n"
        "print('loaded', file=sys.stderr)\n"
        "model(np.array([[1, 600]]))\n"
        "model(np.array([[1, 6]]))\n"
    )

    def stderr(**environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, gathered],
            capture_output=True, text=True, env={**os.environ, **environment}, check=False,
        )  # fmt: skip
        return done.stderr

    loaded, called = stderr(TCEXPORT_LOGS="guards").split("loaded\n")
    assert "[tcexport guards] " in loaded
    assert "b in 1..8, read from ids axis 0  from: given with --dynamic; " in loaded
    assert "0 <= ids <= 511  from: rows of the table" in loaded
    assert called.count("violated") == 1
    assert "got 600 at [0, 1], needs 0 <= ids <= 511" in called
    assert stderr() == "loaded\n"
    assert "TCEXPORT_LOGS: there is nothing called gaurds" in stderr(TCEXPORT_LOGS="gaurds")


def test_the_log_can_be_had_through_logging(added: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tcexport.guards"):
        model = load(added)
        with pytest.raises(GuardError):
            model(rows(65))
    assert "needs n <= 64" in caplog.messages[-1]
