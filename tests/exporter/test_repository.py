"""The commit of a source: clean only where the files are those of the commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tcexport.exporter.repository import Commit, commit_of


def git(folder: Path, *arguments: str) -> str:
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "a"), ("EMAIL", "a@b"), ("DATE", "2026-01-01T00:00:00Z"))
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | identity, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("x = 1\n")
    (tmp_path / "other.py").write_text("y = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return folder / "model.py"


def test_a_commit_is_clean_until_a_tracked_file_is_changed(source: Path, tmp_path: Path) -> None:
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit_of(source) == Commit(head, "clean")
    (source.parent / "model.tcpkg").write_text("what an export leaves beside it")
    assert commit_of(source) == Commit(head, "clean")
    (tmp_path / "other.py").write_text("y = 2\n")
    assert commit_of(source) == Commit(head, "dirty")


def test_a_source_that_is_not_in_the_commit_is_not_clean(source: Path, tmp_path: Path) -> None:
    (source.parent / "new.py").write_text("")
    assert commit_of(source.parent / "new.py") == Commit(
        git(tmp_path, "rev-parse", "HEAD"), "dirty"
    )


def test_without_a_repository_a_commit_or_git_there_is_none(
    source: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    assert commit_of(outside / "model.py") == Commit() == commit_of(None)
    git(outside, "init", "-q")
    assert commit_of(outside / "model.py") == Commit()
    monkeypatch.setenv("GIT_DIR", str(outside / ".git"))  # someone's hook: not about this file
    assert commit_of(source).state == "clean"
    monkeypatch.setenv("PATH", str(outside))
    assert commit_of(source) == Commit()
