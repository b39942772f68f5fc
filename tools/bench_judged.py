"""The answers of each runtime of a benchmark, held against eager's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..artifacts.contract import Contract, TensorOutput
from .bench_names import EAGER
from .bench_processes import Worker, WorkerFailed
from .bench_results import Timing


def outputs_file(folder: Path, name: str) -> Path:
    """Where the answers of a runtime's first call lie, tensors by the numbers of the outputs."""
    return folder / f"{name}.outputs.safetensors"


def judged(
    firsts: dict[str, Timing], contract: Contract, folder: Path, eager: Worker | None
) -> dict[str, Timing]:
    """The first calls with their answers held against eager's, where eager gave one; ``eager`` is asked
    for further ones where it matters."""
    if EAGER not in firsts or firsts[EAGER].failure:
        return firsts
    from safetensors.torch import load_file

    wanted = load_file(outputs_file(folder, EAGER))

    @functools.cache
    def others() -> list[dict[str, Any]]:
        if eager is None:
            return []
        file = folder / "others"
        try:
            count = eager.ask("others", outputs=str(file))["count"]
        except WorkerFailed:
            return []
        return [load_file(f"{file}.{number}") for number in range(count)]

    found = {}
    for name, timing in firsts.items():
        if timing.failure:
            found[name] = timing
            continue
        answer = wanted if name == EAGER else load_file(outputs_file(folder, name))
        right, error = _compare(contract, answer, wanted, others)
        found[name] = replace(timing, right=right, error=error)
    return found


def _compare(
    contract: Contract,
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    others: Callable[[], Sequence[Mapping[str, Any]]],
) -> tuple[bool, float]:
    """Whether all outputs are eager's, and the largest difference of them."""
    from ..exporter.eager import same_numbers
    from ..exporter.undecided import undecided

    right, worst = True, 0.0
    for index, output in enumerate(contract.outputs):
        if isinstance(output, TensorOutput):
            name = f"{index}"
            same, error = same_numbers(found[name], wanted[name])
            if not same:
                moved = [each[name] for each in others()]
                same = undecided(found[name], wanted[name], moved)
            right, worst = right and same, max(worst, error)
    return right, worst
