"""What `make demo` shows of a finished bundle, in an environment without torch: output, guards,
refused calls, timing. ``python -m tcexport.tools.demo text_encoder.tcpkg``"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time

import numpy as np

import tcexport
from tcexport.artifacts.expr import render

_CALLS = 20


def main(path: str) -> None:
    for package in ("torch", "tvm"):
        found = importlib.util.find_spec(package) is not None
        print(f"{package} installed here: {'yes' if found else 'no'}")

    start = time.perf_counter()
    model = tcexport.load(path)
    print(f"\nloaded {path} in {1e3 * (time.perf_counter() - start):.0f} ms: {model.target.name}")

    print("\nWhat every call is held against:")
    for dim in model.contract.dims:
        print(f"  {dim.name} {dim.span()}")
    for guard in model.contract.guards:
        print(f"  {render(guard.expr)}   from {guard.origin}")
    for index in model.contract.index_guards:
        argument = model.contract.inputs[index.input].path
        values = f"{render(index.lo)} <= {argument} <= {render(index.hi)}"
        print(f"  {values}   from {index.origin}")

    random = np.random.default_rng(0)
    ids = random.integers(0, 30000, (1, 16))
    logits = model(ids)
    print(f"\nmodel(ids {list(ids.shape)}) -> {logits.dtype}{list(logits.shape)}")
    print(f"  most likely next tokens: {np.argsort(logits[0, -1])[::-1][:5].tolist()}")

    print("\nTwo calls that it was not compiled for:")
    for wrong in (random.integers(0, 30000, (1, 1500)), np.full((1, 16), 30000)):
        try:
            model(wrong)
        except tcexport.GuardError as error:
            print("\n".join(f"  {line}" for line in f"GuardError{error}".splitlines()))

    print("\nTiming, medians:")
    for shape in ((1, 16), (1, 128), (4, 128)):
        ids = random.integers(0, 30000, shape)
        model(ids)
        times = []
        for _ in range(_CALLS):
            start = time.perf_counter()
            model(ids)
            times.append(time.perf_counter() - start)
        print(f"  batch {shape[0]:2} seq {shape[1]:4}: {1e3 * statistics.median(times):7.1f} ms")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
