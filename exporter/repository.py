"""The commit of the source file, where it lies in a Git repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Literal, NamedTuple


class Commit(NamedTuple):
    """``id`` is the commit's SHA; ``state`` is "clean" where the tracked files of the repository are
    those of the commit and the source is one of them, else "dirty". Both "" without a repository."""

    id: str = ""
    state: Literal["", "clean", "dirty"] = ""


def commit_of(file: Path | None) -> Commit:
    """The commit that a source file belongs to; nothing where Git is not there or knows of none."""
    if file is None:
        return Commit()
    folder = file.resolve().parent
    found = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    if not found:
        return Commit()
    tracked = _git(folder, "ls-files", "--error-unmatch", "--", file.resolve().name) is not None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return Commit(found, "clean" if tracked and changed == "" else "dirty")


def _git(folder: Path, *arguments: str) -> str | None:
    """What Git says; None where it fails or is not there. Reads only: no lock, no hook, no pager."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_")
    } | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
