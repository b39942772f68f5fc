"""Run a bundle on recorded inputs and keep its outputs: ``python -m tcexport.runtime.replay``.

The exporter verifies a finished file this way, in a process that has neither torch nor a compiler.
A folder holds ``calls.json`` (``{"count": n, "fresh": […], "variants": […], "seed": …}``) and, for each
call, ``<i>.inputs.safetensors`` with the tensor inputs named by their index in the contract;
``<i>.outputs.safetensors`` are written beside them, named by the index of the output. A call names the
variant that is to serve it, or "": then the bundle chooses. All such are calls of one session, whose
state is made anew before those that are ``fresh``, with the ``seed`` if there is one;
``state.safetensors`` is what it is at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..artifacts.container import open_bundle
from ..artifacts.contract import Fixed, TensorOutput
from ..artifacts.errors import BundleError, TcexportError
from ..artifacts.weights import Weight, read_weights, write_weights
from .machine import choose_target, this_machine
from .model import Model, load
from .session import Session
from .structure import call_of, leaves_of
from .tensors import WITHOUT_NUMPY, as_numpy_bits, from_bits


def replay(bundle: Path, folder: Path) -> None:
    """Make the calls recorded in ``folder`` and write their outputs there.

    Where this machine has no use for the bundle's binaries, ``unfit`` says why, and no call is made.
    """
    with open_bundle(bundle) as opened:
        try:
            choose_target(opened.manifest.targets, this_machine(), bundle)
        except BundleError as error:
            (folder / "unfit").write_text(error.diagnostics[0].message)
            return
    recording = json.loads((folder / "calls.json").read_text())
    sessions: dict[str, tuple[Model, Session]] = {}
    for number in range(recording["count"]):
        variant = recording["variants"][number]
        if variant not in sessions:
            loaded = load(bundle, device="cpu", variant=variant or None)
            sessions[variant] = loaded, loaded.session()
        model, session = sessions[variant]
        if recording["fresh"][number]:
            session.reset()
            if recording["seed"] is not None:
                session.seed(recording["seed"])
        file = (folder / f"{number}.inputs.safetensors").read_bytes()
        recorded = read_weights(memoryview(file))
        args, kwargs = arguments_of(model, recorded)
        outputs = _outputs(model, session(*args, **kwargs))
        write_weights(folder / f"{number}.outputs.safetensors", outputs)
    write_weights(folder / "state.safetensors", sessions[""][1].bits() if "" in sessions else {})


def arguments_of(model: Model, recorded: dict[str, Weight]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a recorded call."""
    values = [
        item.value if isinstance(item, Fixed) else _argument(recorded[str(index)])
        for index, item in enumerate(model.contract.inputs)
    ]
    return call_of(model.contract, values)


def _argument(recorded: Weight) -> Any:
    if recorded.dtype in WITHOUT_NUMPY:
        return from_bits(recorded.data, recorded.dtype)
    return recorded.data


def _outputs(model: Model, result: Any) -> dict[str, np.ndarray | Weight]:
    flat = leaves_of(model.contract.result, result)
    found: dict[str, np.ndarray | Weight] = {}
    for index, output in enumerate(model.contract.outputs):
        if isinstance(output, TensorOutput):
            value = flat[index]
            if output.dtype in WITHOUT_NUMPY:
                value = Weight(as_numpy_bits(value, output.dtype), output.dtype)
            found[str(index)] = value
    return found


if __name__ == "__main__":
    try:
        replay(Path(sys.argv[1]), Path(sys.argv[2]))
    except TcexportError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
