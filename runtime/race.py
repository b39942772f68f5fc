"""Two codes of one bundle timed in turn: what slows the machine down for a while slows both.

``python -m tcexport.runtime.race BUNDLE FOLDER`` lets variants run against the code that would serve
their calls else, on calls that `replay` has made. A folder holds ``races.json``: a list of ``{"call",
"variant", "against"}``, with the number of a recorded call. ``raced.json`` is written beside it: for
each of them a list of runs, each with the seconds of a call of both codes in each round. There is a
second run, twice as long, where the first finds the variant slower; and none where a call takes so long
that the rounds would be too few to tell.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..artifacts.errors import TcexportError
from ..artifacts.turns import ratio_of
from ..artifacts.weights import read_weights
from .model import Model, load
from .replay import arguments_of

BURST = 0.02  # seconds of one burst, about
_ROUNDS, _FEWEST = 12, 8
_SECONDS = 10.0  # that one run may take


def in_turn(
    calls: tuple[Callable[[], Any], Callable[[], Any]],
    rounds: int,
    *,
    burst: float = BURST,
    seconds: float | None = None,
    fewest: int = 1,
) -> list[tuple[float, float]]:
    """Seconds of a call of each, the means of a burst, for each round. Who begins changes from round
    to round.

    Args:
        seconds: that all of it may take, about; there are fewer rounds then, and none where they would
            be fewer than ``fewest``.
    """
    warm = [_burst(call, 1) for call in calls]
    if seconds is not None and 4 * fewest * max(warm) > seconds:
        return []  # a second call is not needed to know it
    warm = [min(before, _burst(call, 3)) for before, call in zip(warm, calls, strict=True)]
    count = max(1, int(burst / max(min(warm), 1e-7)))
    if seconds is not None:
        rounds = min(rounds, int(seconds / ((count + 1) * sum(warm))))
        if rounds < fewest:
            return []
    found = []
    for number in range(rounds):
        order = (0, 1) if number % 2 else (1, 0)
        times = {which: _burst(calls[which], count) for which in order}
        found.append((times[0], times[1]))
    return found


def _burst(call: Callable[[], Any], count: int) -> float:
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def race(bundle: Path, folder: Path) -> None:
    """Run the races of a folder, and write down their times."""
    models: dict[str, Model] = {}

    def call_of(variant: str, call: int) -> Callable[[], Any]:
        if variant not in models:
            models[variant] = load(bundle, device="cpu", variant=variant)
        model = models[variant]
        recorded = (folder / f"{call}.inputs.safetensors").read_bytes()
        args, kwargs = arguments_of(model, read_weights(memoryview(recorded)))
        if not model.states:
            return lambda: model(*args, **kwargs)
        session = model.session()
        if model.manifest.generator:
            session.seed(0)
        return lambda: session(*args, **kwargs)

    found = []
    for each in json.loads((folder / "races.json").read_text()):
        calls = call_of(each["against"], each["call"]), call_of(each["variant"], each["call"])
        runs = []
        for again in (1, 2):
            times = in_turn(
                calls,
                again * _ROUNDS,
                burst=BURST / 2,
                seconds=again * _SECONDS,
                fewest=_FEWEST,
            )
            if times:
                runs.append(times)
            if not times or not ratio_of(times).slower:
                break
        found.append(runs)
    (folder / "raced.json").write_text(json.dumps(found))


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    try:
        race(Path(arguments[0]), Path(arguments[1]))
    except TcexportError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
