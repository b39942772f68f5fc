"""The zoo: real models of every family, each exported, compared with eager, and tried outside.

``python -m tcexport.tools.zoo`` runs every row of tests/zoo, a process each, prints the table and
writes docs/zoo.md. ``NAME…`` runs those rows alone and writes theirs; ``--quarter HASH`` runs a
quarter of them, which another hash picks otherwise, holds it against the page, and writes nothing.
It runs from a checkout.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from ..artifacts.names import suggestions
from .zoo_page import recorded, write_page
from .zoo_row import Outcome

_ROOT = Path(__file__).parent.parent
ROWS = _ROOT / "tests" / "zoo"
PAGE = _ROOT / "docs" / "zoo.md"


@dataclass(frozen=True)
class Name:
    """Where a row is defined: a function in a file of tests/zoo."""

    file: Path
    name: str
    slow: bool = False


def names() -> list[Name]:
    """All rows, in the order of the files. No file is run for it.

    Raises:
        ClickException: this is no checkout.
    """
    if not ROWS.is_dir():
        raise click.ClickException(f"there is no folder {ROWS}: the zoo runs from a checkout")
    return [each for file in sorted(ROWS.glob("*.py")) for each in _rows_of(file)]


def _rows_of(file: Path) -> Iterator[Name]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for each in node.decorator_list:
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "row":
                slow = any(keyword.arg == "slow" for keyword in each.keywords)
                yield Name(file, node.name, slow)


def quarter(rows: Sequence[Name], commit: str) -> list[Name]:
    """Every fourth row, from a place that the hash decides; not the slow ones."""
    digits = re.sub(r"[^0-9a-f]", "", commit.lower())[:8] or "0"
    return [row for row in rows if not row.slow][int(digits, 16) % 4 :: 4]


def run(row: Name, mode: str, seconds: float) -> Outcome:
    """One row in a process of its own, which may crash or hang: that is an outcome, too."""
    command = [sys.executable, "-m", "tcexport.tools.zoo_row", str(row.file), row.name, mode]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the compiler that it started, too
            return Outcome("crash", f"no end within {seconds:.0f} s", seconds=seconds)
    if process.returncode == 0:
        return msgspec.json.decode(out.strip().splitlines()[-1], type=Outcome)
    lines = err.strip().splitlines() or [""]
    status = process.returncode
    ended = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return Outcome("crash", f"{ended}: {lines[-1]}")


@click.command()
@click.argument("chosen", nargs=-1, metavar="[NAME]…")
@click.option("--quarter", "commit", metavar="HASH", help="Run a quarter of the rows, by a hash.")
@click.option("--check", "lower_only", is_flag=True, help="Trace and lower only: nothing is built.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--limit", type=float, default=600.0, show_default=True, help="Seconds for a row.")
def main(
    chosen: tuple[str, ...], commit: str | None, lower_only: bool, jobs: int, limit: float
) -> None:
    """Run the rows NAME (all: without)."""
    rows = names()
    known = {row.name: row for row in rows}
    if len(known) != len(rows):
        raise click.ClickException("two rows have the same name")
    for name in chosen:
        if name not in known:
            close = "".join(f" (did you mean {each}?)" for each in suggestions(name, known)[:1])
            raise click.BadParameter(f"there is no row {name}{close}")
    families = {row.name: row.file.stem for row in rows}
    if chosen:
        rows = [known[name] for name in chosen]
    if commit is not None:
        rows = quarter(rows, commit)
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(jobs) as pool:
        mode = "check" if lower_only else "export"
        running = {pool.submit(run, row, mode, limit): row for row in rows}
        for future in as_completed(running):
            row, outcome = running[future], future.result()
            outcomes[row.name] = outcome
            click.echo(_line(row.name, outcome))
            if commit is None and not lower_only:  # kept, should the rest be interrupted
                write_page(PAGE, {row.name: outcome}, families)
    counts = {
        status: sum(each.status == status for each in outcomes.values())
        for status in dict.fromkeys(each.status for each in outcomes.values())
    }
    click.echo(", ".join(f"{count} {status}" for status, count in counts.items()))
    less = [] if commit is None else worse(outcomes, recorded(PAGE))
    bad = [name for name, each in outcomes.items() if each.status in ("wrong", "crash")]
    if bad or less:
        failed = ", ".join(dict.fromkeys([*bad, *less]))
        raise click.ClickException(f"wrong, crashed, or ok in docs/zoo.md and not here: {failed}")


def worse(outcomes: dict[str, Outcome], before: dict[str, str]) -> list[str]:
    """The rows that were ok before, and are not now."""
    return [
        name for name, each in outcomes.items() if each.status != "ok" and before.get(name) == "ok"
    ]


def _line(name: str, outcome: Outcome) -> str:
    figures = f"{outcome.seconds:5.1f} s  {outcome.sizes} sizes" if outcome.status == "ok" else ""
    return f"{name:24} {outcome.status:8} {figures}{outcome.reason}"


if __name__ == "__main__":
    main()
