"""Logs: turned on by the environment or by a call, told on stderr, refused where misspelt."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import tcexport
from tcexport.artifacts.logs import NAMES, log, set_logs


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TCEXPORT_LOGS", raising=False)
    yield
    monkeypatch.delenv("TCEXPORT_LOGS", raising=False)
    set_logs()
    for name in NAMES:
        log(name)


def told(capsys: pytest.CaptureFixture[str], *names: str) -> list[str]:
    for name in names:
        listener = log(name)
        if listener is not None:
            listener.info("something of %s", name)
    return capsys.readouterr().err.splitlines()


def test_there_are_torchs_names_and_ours() -> None:
    assert set(NAMES) == {"graph_breaks", "guards", "dynamic", "variants", "runtime", "lowering"}


def test_a_call_turns_logs_on_and_the_next_one_replaces_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert told(capsys, *NAMES) == []
    tcexport.set_logs(guards=True, lowering=True, dynamic=False)
    assert told(capsys, *NAMES) == [
        "[tcexport guards] something of guards",
        "[tcexport lowering] something of lowering",
    ]
    tcexport.set_logs(variants=True)
    assert told(capsys, *NAMES) == ["[tcexport variants] something of variants"]
    tcexport.set_logs()
    assert told(capsys, *NAMES) == []


def test_what_the_environment_names_stays_on_while_it_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCEXPORT_LOGS", "guards, +dynamic")
    assert len(told(capsys, *NAMES)) == 2
    tcexport.set_logs(guards=False, lowering=True)
    assert len(told(capsys, *NAMES)) == 3
    monkeypatch.delenv("TCEXPORT_LOGS")
    assert told(capsys, *NAMES) == ["[tcexport lowering] something of lowering"]


def test_an_unknown_name_is_refused_and_changes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_logs(guards=True)
    with pytest.raises(tcexport.UsageError, match="nothing called graph_break") as error:
        set_logs(graph_break=True)
    assert "graph_breaks" in error.value.diagnostics[0].tries[0]
    assert told(capsys, *NAMES) == ["[tcexport guards] something of guards"]
    monkeypatch.setenv("TCEXPORT_LOGS", "gaurds")
    with pytest.raises(tcexport.UsageError, match="TCEXPORT_LOGS: there is nothing called gaurds"):
        log("guards")


def test_pythons_own_logging_is_left_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    set_logs(guards=True)
    set_logs()
    with caplog.at_level(logging.INFO, "tcexport.guards"):
        listener = log("guards")
        assert listener is not None
        listener.info("heard")
    assert caplog.messages == ["heard"]
