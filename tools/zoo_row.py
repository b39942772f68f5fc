"""One row of the zoo, in a process of its own: exported, held against eager, and tried outside.

``python -m tcexport.tools.zoo_row FILE NAME MODE`` prints one `Outcome` as JSON on its last line; MODE
is ``export``, or ``check`` to trace and lower only.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils import _pytree as pytree

from ..artifacts.errors import Diagnostic, GuardError, TcexportError
from ..exporter.drawing import SEED, Drawing
from ..exporter.eager import same_numbers
from ..exporter.sessions import reset_of
from ..exporter.undecided import other_answers, undecided
from .served import served
from .zoo_rows import Model, axes_of, draw, example_sizes, sizes_inside, sizes_outside

TARGET = "cpu:x86-64-v3"


class Outcome(msgspec.Struct, frozen=True):
    """What became of a row.

    Attributes:
        status: ``ok``; ``lowers`` where it was only checked; ``refused``, with the code and place of
            the first refusal in ``reason``; ``wrong``: another answer than eager's, or a call outside
            of the contract that was answered; ``crash``.
        reason: why it is not ok.
        sizes: at how many sizes it was compared with eager.
        outside: how many calls outside of the contract were refused.
        error: the largest absolute difference from eager.
        seconds: of the export.
        megabytes: of the bundle.
        parameters: of the model.
    """

    status: str
    reason: str = ""
    sizes: int = 0
    outside: int = 0
    error: float = 0.0
    seconds: float = 0.0
    megabytes: float = 0.0
    parameters: int = 0


class _Wrong(Exception):
    """The bundle answers, and not as it should."""


def load_row(file: Path, name: str) -> Model:
    """A row of a file of rows."""
    spec = importlib.util.spec_from_file_location(f"zoo_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for dataclasses and types that the file defines
    spec.loader.exec_module(module)
    found = getattr(module, name)
    if not isinstance(found, Model):
        raise TypeError(f"{file.name}: {name} is no row")
    return found


def run_row(model: Model, *, lower_only: bool = False) -> Outcome:
    """Export a row, compare it with eager inside of its ranges, and call it outside of them."""
    torch.manual_seed(0)
    module, inputs = model.make()
    module.eval()
    parameters = sum(each.numel() for each in module.parameters())
    options: dict[str, Any] = {
        "kwargs": draw(inputs, example_sizes(model.dims), seed=0),
        "axes": dict(axes_of(inputs)),
        "dynamic": dict(model.dims),
    }
    if not shows_something(module, model, inputs):
        return Outcome("wrong", "another input gives the same results: a comparison shows nothing")
    start = time.perf_counter()

    def outcome(status: str, reason: str = "", **more: Any) -> Outcome:
        seconds = time.perf_counter() - start
        return Outcome(status, reason, seconds=seconds, parameters=parameters, **more)

    try:
        if lower_only:
            from ..exporter.check import check

            errors = check(module, **options).errors
            return outcome("refused", _told(errors)) if errors else outcome("lowers")
        from ..exporter.export import export

        with tempfile.TemporaryDirectory(prefix="tcexport-zoo-") as folder:
            bundle = Path(folder) / "row.tcpkg"
            report = export(module, **options, out=bundle, targets=(TARGET,))
            exported = outcome("ok", megabytes=report.size / 1e6)
            compared = _compared(module, model, inputs, bundle)
    except _Wrong as wrong:
        return outcome("wrong", str(wrong))
    except TcexportError as error:
        codes = {each.code for each in error.diagnostics}
        status = "wrong" if codes & _OURS else "refused"
        return outcome(status, _told(error.diagnostics))
    return msgspec.structs.replace(exported, **compared)


def shows_something(module: torch.nn.Module, model: Model, inputs: Any) -> bool:
    """Whether a comparison would tell the results of one input from those of another: small random
    weights let those of a deep model vanish."""
    results = []
    for seed in (0, 1):
        with torch.no_grad():
            call = draw(inputs, example_sizes(model.dims), seed)
            results.append(_tensors(copy.deepcopy(module)(**call)))
    return not all(same_numbers(one, two)[0] for one, two in zip(*results, strict=True))


# The compiler failed, a result was not what the trace says, or the file not what eager gives: no
# fault of the model's.
_OURS = {"TC190", "TC502", "TC503", "TC504", "TC590"}


def _told(diagnostics: Sequence[Diagnostic]) -> str:
    """The first refusal, and how many more there are."""
    first = next((each for each in diagnostics if each.severity == "error"), diagnostics[0])
    where = f" ({first.location})" if first.location else ""
    rest = sum(each.severity == "error" for each in diagnostics) - 1
    notes = "".join(f"; {note}" for note in first.notes[:3])
    return f"{first.code} {first.message}{where}{notes}" + (
        f", and {rest} more" if rest > 0 else ""
    )


def _compared(module: torch.nn.Module, model: Model, inputs: Any, bundle: Path) -> dict[str, Any]:
    from ..runtime.model import load

    loaded = load(bundle, device="cpu")
    reset = reset_of(module, [state.name for state in loaded.states])
    error = 0.0
    inside = sizes_inside(model.dims)
    for seed, sizes in enumerate(inside):
        call = draw(inputs, sizes, seed)

        def eager(call: Any = call) -> list[torch.Tensor]:
            numbers = Drawing() if loaded.manifest.generator else contextlib.nullcontext()
            with torch.no_grad(), numbers:
                return _tensors(module(**pytree.tree_map(_cloned, call)))

        # Where the model keeps state, each call is on that of the export.
        want, others = eager(), None
        reset()
        got = _tensors(served(loaded, SEED)(**call))
        if len(got) != len(want):
            raise _Wrong(f"{len(got)} tensors, eager gives {len(want)}")
        for index, (mine, eagers) in enumerate(zip(got, want, strict=True)):
            same, difference = same_numbers(mine, eagers)
            error = max(error, difference)
            if not same and others is None and not loaded.states:
                others = other_answers(eager)
            if not same and not undecided(mine, eagers, [each[index] for each in others or ()]):
                kind = f"{mine.dtype} {list(mine.shape)}, {eagers.dtype} {list(eagers.shape)}"
                raise _Wrong(f"{sizes}: output {index} is off by {difference:.3g} ({kind})")
    refused = sizes_outside(model.dims)
    for sizes in refused:
        try:
            served(loaded)(**draw(inputs, sizes, 0))
        except GuardError:
            continue
        raise _Wrong(f"{sizes} lies outside of the contract and was answered")
    return {"sizes": len(inside), "outside": len(refused), "error": error}


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The models' own warnings and prints are none of the table's."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    """Run the row that the command line names."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a row is built without any download
    file, name, mode = sys.argv[1:]
    with _quietly():
        outcome = run_row(load_row(Path(file), name), lower_only=mode == "check")
    print(msgspec.json.encode(outcome).decode(), flush=True)


if __name__ == "__main__":
    main()
