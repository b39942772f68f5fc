"""The node tests of the onnx package: each one read and run, or refused by name.

``python -m tcexport.tools.onnx_nodes`` runs all of them as eager modules and writes the table of
docs/onnx.md; with names, those that contain one of these, and prints what became of each.

A test gives shapes and axes as inputs, which in a file of a model are constants: where they are refused
as inputs, they are tried as initializers. A test of an opset that is not read is tried as one of the
nearest that is; the checker of onnx refuses what that opset does not have.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from ..artifacts.errors import TcexportError
from ..exporter.eager import same_numbers
from ..exporter.onnx.external import BrokenTensor, Tensors
from ..exporter.onnx.program import unreadable_at
from ..exporter.onnx.registry import NEWEST, OLDEST, Unreadable
from ..exporter.onnx.source import open_onnx

PAGE = Path("docs/onnx.md")
TITLE = "## The node tests of onnx"
_FLOATS_OF = {2: 2e-2, 4: 1e-3, 8: 1e-3}  # by bytes: what the tests allow of a relative difference


@dataclass(frozen=True)
class Case:
    """One test: ``model`` (a ``ModelProto``), its inputs and what it shall give, as arrays of onnx."""

    name: str
    operator: str
    model: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True)
class Outcome:
    """``verdict``: equal, refused, wrong or crashed; ``said``: the refusal, the difference or the
    error; ``path``: the file that gave it, ``inputs`` and ``outputs`` of that file."""

    name: str
    operator: str
    verdict: str
    said: str = ""
    path: Path | None = None
    inputs: tuple[torch.Tensor, ...] = ()
    outputs: tuple[torch.Tensor, ...] = ()

    @property
    def kind(self) -> str:
        """The line of the table that it counts for."""
        if self.verdict != "refused":
            return self.verdict
        if "cannot be read: " in self.said:
            return "refused: what no opset from 13 to 23 has"
        if ", which is not read" in self.said or "not a tensor" in self.said:
            return "refused: strings, sequences, and types that torch or a bundle has not"
        if re.fullmatch(r"[\w.]+ is not read(: .*)?", self.said.partition(";")[0]):
            return "refused: an operator"
        return "refused: a use of an operator"


def cases() -> Iterator[Case]:
    """All tests, in the order of their names; the package makes them when it is asked."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    for each in sorted(found, key=lambda test: test.name):
        for inputs, outputs in each.data_sets:
            operator = each.model.graph.node[0].op_type
            yield Case(each.name, operator, each.model, tuple(inputs), tuple(outputs))


def outcome(case: Case, folder: Path) -> Outcome:
    """What becomes of a test, as an eager module. Its file is left in ``folder``."""
    model = _stamped(case.model)
    inputs, outputs = _tensors(case.inputs), _tensors(case.outputs)
    path = folder / f"{case.name}.onnx"
    made = _run(case, model, inputs, outputs, path)
    if made.verdict != "refused" or inputs is None or len(inputs) != len(model.graph.input):
        return made
    for constant in _CONSTANTS:
        taken = [constant(at, tensor) for at, tensor in enumerate(inputs)]
        if not any(taken):
            continue
        kept = tuple(tensor for tensor, gone in zip(inputs, taken, strict=True) if not gone)
        tried = _run(case, _with_constants(model, inputs, taken), kept, outputs, path)
        if tried.verdict != "refused":
            return tried
    return made


# Which inputs are constants in the files that models are in: integers; all but the first; small ones.
_CONSTANTS: tuple[Callable[[int, torch.Tensor], bool], ...] = (
    lambda at, tensor: not tensor.is_floating_point(),
    lambda at, tensor: at > 0,
    lambda at, tensor: at > 0 and tensor.dim() < 2,
)


def bundled(found: Outcome) -> Outcome:
    """The same of a bundle: exported with the sizes of the test, and called with its inputs."""
    from ..exporter.export import export_source
    from ..exporter.source import load_source
    from ..runtime import load

    assert found.path is not None
    out = found.path.with_suffix(".tcpkg")
    try:
        source = replace(load_source(str(found.path)), args=found.inputs)
        export_source(source, dynamic={}, targets=("cpu:x86-64-v3",), out=out)
        got = load(out)(*found.inputs)
    except TcexportError as error:
        return replace(found, verdict="refused", said=_said(error))
    except Exception as error:  # a crash is what is looked for
        return replace(found, verdict="crashed", said=repr(error))
    results = list(got.values()) if isinstance(got, dict) else [got]
    tensors = [torch.from_dlpack(each) for each in results]
    difference = _difference(tensors, found.outputs)
    return replace(found, verdict="wrong" if difference else "equal", said=difference)


def _run(
    case: Case,
    model: Any,
    inputs: tuple[torch.Tensor, ...] | None,
    outputs: tuple[torch.Tensor, ...] | None,
    path: Path,
) -> Outcome:
    """Read a model and run it once."""
    import onnx

    onnx.save(model, path)
    made = Outcome(case.name, case.operator, "refused")
    try:
        module = open_onnx(path).module
        if inputs is None:
            return replace(made, verdict="wrong", said="read, with inputs that are no tensors")
        with torch.no_grad():
            got = module(*(each.clone() for each in inputs))
    except Unreadable as error:
        return replace(made, said=_said(unreadable_at(error, path)))
    except TcexportError as error:
        return replace(made, said=_said(error))
    except Exception as error:  # a crash is what is looked for
        return replace(made, verdict="crashed", said=repr(error))
    results = list(got.values()) if isinstance(got, dict) else [got]
    difference = "its outputs are no tensors"
    if outputs is not None:
        difference = _difference(results, outputs)
        made = replace(made, path=path, inputs=inputs, outputs=outputs)
    return replace(made, verdict="wrong" if difference else "equal", said=difference)


def _difference(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> str:
    """In words, where results are not those of the test."""
    if len(got) != len(want):
        return f"{len(got)} outputs, and {len(want)} are wanted"
    for at, (a, b) in enumerate(zip(got, want, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"output {at} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        near = _FLOATS_OF.get(b.dtype.itemsize) if b.dtype.is_floating_point else None
        if near and torch.allclose(a.double(), b.double(), near, 1e-5, equal_nan=True):
            continue
        same, error = same_numbers(a, b)
        if not same:
            return f"output {at} differs by {error:.2g}"
    return ""


def _said(error: TcexportError) -> str:
    return "; ".join(each.message for each in error.diagnostics)


def _tensors(values: Sequence[Any]) -> tuple[torch.Tensor, ...] | None:
    """Arrays and ``TensorProto`` as tensors; None where one of them is none, or of a type that is not
    read."""
    import onnx
    from onnx import numpy_helper

    reader = Tensors(Path("."))
    found = []
    for each in values:
        if isinstance(each, (list, dict)) or each is None:
            return None
        proto = each if isinstance(each, onnx.TensorProto) else None
        try:
            found.append(reader.read(proto or numpy_helper.from_array(np.asarray(each))))
        except (BrokenTensor, TypeError, ValueError):
            return None
    return tuple(found)


def _stamped(model: Any) -> Any:
    """The model as one of the nearest opset that is read."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, 10)  # what ONNX Runtime reads, too
    for each in copy.opset_import:
        if each.domain == "":
            each.version = min(max(each.version, OLDEST), NEWEST)
    return copy


def _with_constants(model: Any, inputs: Sequence[torch.Tensor], taken: Sequence[bool]) -> Any:
    """The model with some of its inputs as initializers."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.input[:]
    for value, tensor, gone in zip(model.graph.input, inputs, taken, strict=True):
        if not gone:
            copy.graph.input.append(value)
            continue
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = value.type.tensor_type.elem_type
        copy.graph.initializer.append(
            onnx.TensorProto(name=value.name, data_type=kind, dims=list(tensor.shape), raw_data=raw)
        )
    return copy


def section(outcomes: Sequence[Outcome]) -> str:
    """The section of the page, from its title on."""
    import onnx

    counts = Counter(each.kind for each in outcomes)
    lines = [
        TITLE,
        "",
        f"Written by `python -m tcexport.tools.onnx_nodes` with onnx {onnx.__version__}: each test of",
        "`onnx.backend.test`, read as a file and run as a torch module. One of another opset is tried",
        "as one of the nearest that is read; shapes and axes that come as inputs are constants where",
        "they are refused as inputs. `make zoo` runs them, too, and a bundle of each operator.",
        "",
        "| what became of it | tests |",
        "| --- | --- |",
    ]
    for kind in ("equal", "wrong", "crashed"):
        lines.append(f"| {kind} | {counts.pop(kind, 0)} |")
    lines += [f"| {kind} | {count} |" for kind, count in sorted(counts.items())]
    return "\n".join([*lines, ""])


def with_section(page: str, written: str) -> str:
    """A page with its section replaced, or with it at its end."""
    before, _, after = page.partition(f"{TITLE}\n")
    _, found, rest = after.partition("\n## ")
    return f"{before.rstrip()}\n\n{written}{found}{rest}"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--bundles", is_flag=True, help="Make a bundle of each operator's first test, too.")
def main(names: tuple[str, ...], bundles: bool) -> None:
    """Run the tests whose names contain a NAME; all of them, and write the page, without one."""
    if not names and not PAGE.exists():
        raise click.ClickException(f"{PAGE} is not here: run it in the root of a checkout")
    asked = [each for each in cases() if not names or any(name in each.name for name in names)]
    if not asked:
        raise click.BadParameter(f"no test of onnx has {' or '.join(names)} in its name")
    outcomes = []
    done: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="tcexport-onnx-") as folder:
        for case in asked:
            found = outcome(case, Path(folder))
            outcomes.append(found)
            if names or found.verdict in ("wrong", "crashed"):
                click.echo(f"{case.name}: {found.verdict} {found.said}".rstrip())
            if bundles and found.path and case.operator not in done:
                done.add(case.operator)
                made = bundled(found)
                click.echo(f"{case.name}, a bundle: {made.verdict} {made.said}".rstrip())
    for kind, count in sorted(Counter(each.kind for each in outcomes).items()):
        click.echo(f"{count:5} {kind}")
    if not names:
        PAGE.write_text(with_section(PAGE.read_text("utf-8"), section(outcomes)), "utf-8")


if __name__ == "__main__":
    main()
