"""``tcexport run``: one call of a bundle, with inputs from files and outputs into one."""

from __future__ import annotations

import os
import secrets
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..artifacts.contract import (
    Contract,
    Fixed,
    TensorInput,
)
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.names import suggestions
from .tables import shape_text

_FEW = 6
_SUFFIXES = (".npz", ".npy", ".safetensors")


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="INPUT=FILE|VALUE",
    help="An input: `ids=ids.npy`, or the value of a fixed one: `k=3`. `--input all.npz` holds "
    "several, by their paths.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write the outputs: .npz, .safetensors, or .npy for a single one.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="`cpu`, `cuda`, `cuda:1`; `auto`: a GPU where BUNDLE holds code for it, else the CPU.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Number of worker threads; without it, the runtime's default.",
)
@click.option(
    "--seed",
    type=int,
    help="Seed of the random numbers that a model draws.",
)
@click.option(
    "--require-signature",
    "keys",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Refuse BUNDLE unless a key of this file signed it: PEM, or a key list. Repeatable.",
)
def command(
    bundle: Path,
    inputs: tuple[str, ...],
    output: Path | None,
    device: str,
    threads: int | None,
    keys: tuple[Path, ...],
    seed: int | None,
) -> None:
    """Run BUNDLE once. Needs neither PyTorch nor a compiler. A model with state starts anew; one
    that draws random numbers needs --seed.

    \b
      tcexport run m.tcpkg --input input_ids=ids.npy -o out.npz
    """
    if output is not None:
        _check_output(output)
    from ..runtime import load

    start = time.perf_counter()
    model = load(bundle, device=device, num_threads=threads, require_signature=keys or None)
    loaded = time.perf_counter()
    if seed is None and model.manifest.generator:
        raise UsageError(
            Diagnostic(
                "TC325",
                "the model draws random numbers, and no seed is given",
                tries=("--seed 1234",),
            )
        )
    contract = model.contract
    args, kwargs = call_arguments(contract, _values(contract, inputs))
    begin = time.perf_counter()
    session = model.session()
    if seed is not None:
        session.seed(seed)
    result = session(*args, **kwargs)
    done = time.perf_counter()
    outputs = dict(_named_outputs(contract, result))
    for path, value in outputs.items():
        click.echo(_summary(path, value))
    where = f" on {model.device}" if model.device != "cpu" else ""
    click.echo(f"loaded in {loaded - start:.3f} s, called in {1000 * (done - begin):.2f} ms{where}")
    if output is not None:
        _write(output, outputs)
        click.echo(str(output))


# --- inputs ---------------------------------------------------------------------------------------


def _values(contract: Contract, inputs: Sequence[str]) -> dict[str, Any]:
    """The inputs that were given, by path."""
    from ..exporter.options import parse_plain

    values: dict[str, Any] = {}
    for text in inputs:
        path, equals, value = text.partition("=")
        if not equals and path.endswith(".npz"):
            found = dict(_read(path))
        elif not equals or not path or not value:
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"cannot read --input {text}",
                    notes=("it is read as INPUT=FILE.npy, INPUT=VALUE or FILE.npz",),
                    tries=_try_inputs(contract),
                )
            )
        elif value.endswith((".npy", ".npz")):
            found = {path: _single(value)}
        else:
            found = {path: parse_plain(path, value)}
        for name, each in found.items():
            if name in values:
                raise UsageError(Diagnostic("TC008", f"--input gives {name} twice"))
            values[name] = each
    return values


def _single(file: str) -> Any:
    """The one array in a .npy or .npz file."""
    arrays = list(_read(file))
    if len(arrays) != 1:
        names = ", ".join(name for name, _ in arrays)
        raise UsageError(
            Diagnostic(
                "TC008",
                f"{file} holds {len(arrays)} arrays, not one: {names}",
                tries=(f"--input {file}   (takes each by its name)",),
            )
        )
    return arrays[0][1]


def _read(file: str) -> list[tuple[str, Any]]:
    """The arrays of a numpy file, with their names. Objects are refused: no pickle is read."""
    import numpy as np

    try:
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return [("", found)]
        with found:
            return [(name, found[name]) for name in found.files]
    except FileNotFoundError:
        near = [each.name for each in Path(file).parent.glob("*.np[yz]")]
        close = suggestions(Path(file).name, near)
        raise UsageError(
            Diagnostic("TC001", f"there is no file {file}", tries=tuple(close[:1]))
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(
            Diagnostic(
                "TC008", f"cannot read {file}: {error}", tries=('numpy.save("x.npy", array)',)
            )
        ) from None


def call_arguments(
    contract: Contract, values: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call from the values of its leaves, by path.

    A fixed leaf that is not given has its fixed value; an optional parameter of which nothing is
    given is left out.

    Raises:
        UsageError: TC006, a path that is not there; TC302, a tensor that is missing.
    """
    paths = [each.path for each in contract.inputs]
    for path in values:
        if path not in paths:
            close = suggestions(path, paths)[:1]
            raise UsageError(
                Diagnostic(
                    "TC006",
                    f"the bundle has no input {path}",
                    notes=(f"inputs: {', '.join(paths)}",),
                    tries=tuple(f"--input {name}=…" for name in close),
                )
            )
    missing = [
        each
        for each in contract.inputs
        if isinstance(each, TensorInput) and each.path not in values
    ]
    if missing:
        listed = ", ".join(
            f"{each.path} ({each.dtype}{shape_text(each.shape)})" for each in missing
        )
        raise UsageError(
            Diagnostic("TC302", f"missing inputs: {listed}", tries=_try_inputs(contract))
        )
    from ..runtime.structure import call_of

    leaf_values = [
        values.get(each.path, each.value if isinstance(each, Fixed) else None)
        for each in contract.inputs
    ]
    return call_of(contract, leaf_values, {paths.index(path) for path in values})


def _try_inputs(contract: Contract) -> tuple[str, ...]:
    options = [
        f"--input {each.path}={each.path.rpartition('.')[2]}.npy"
        for each in contract.inputs
        if isinstance(each, TensorInput)
    ]
    return (" ".join(options),) if options else ()


# --- outputs --------------------------------------------------------------------------------------


def _named_outputs(contract: Contract, result: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a result with their paths, in order."""
    from ..runtime.structure import leaves_of

    flat = leaves_of(contract.result, result)
    for output, value in zip(contract.outputs, flat, strict=True):
        yield output.path or "output", value


def _summary(path: str, value: Any) -> str:
    import numpy as np

    if not isinstance(value, np.ndarray):
        return f"{path}: {value!r}"
    few = " ".join(f"{each:.6g}" for each in value.reshape(-1)[:_FEW])
    more = " …" if value.size > _FEW else ""
    return f"{path}: {value.dtype}{list(value.shape)}  {few}{more}"


def _check_output(output: Path) -> None:
    if output.suffix not in _SUFFIXES:
        raise UsageError(
            Diagnostic(
                "TC008",
                f"-o {output}: outputs are written as {', '.join(_SUFFIXES)}",
                tries=(f"-o {output.with_suffix('.npz')}",),
            )
        )
    if not output.parent.is_dir():
        raise UsageError(
            Diagnostic(
                "TC012",
                f"cannot write {output}: there is no folder {output.parent}",
                tries=(f"mkdir -p {output.parent}",),
            )
        )


def _write(output: Path, outputs: Mapping[str, Any]) -> None:
    """Write the arrays and sizes among the outputs, whole or not at all."""
    import numpy as np

    arrays = {
        path: np.asarray(value, order="C")
        for path, value in outputs.items()
        if isinstance(value, (np.ndarray, int)) and not isinstance(value, bool)
    }
    if output.suffix == ".npy" and len(arrays) != 1:
        raise UsageError(
            Diagnostic(
                "TC008",
                f"-o {output}: a .npy file holds one array, and there are {len(arrays)}",
                tries=(f"-o {output.with_suffix('.npz')}",),
            )
        )
    draft = output.with_name(f".{output.name}.{secrets.token_hex(6)}.part")
    try:
        with open(draft, "xb") as file:
            if output.suffix == ".npy":
                np.save(file, next(iter(arrays.values())))
            elif output.suffix == ".npz":
                # Not savez: an output may be called `file`, like its own parameter.
                with zipfile.ZipFile(file, "w") as archive:
                    for path, array in arrays.items():
                        with archive.open(f"{path}.npy", "w", force_zip64=True) as member:
                            np.lib.format.write_array(member, array, allow_pickle=False)
            else:
                from safetensors.numpy import save

                file.write(save(arrays))
        os.replace(draft, output)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(Diagnostic("TC012", f"cannot write {output}: {reason}")) from None
    finally:
        draft.unlink(missing_ok=True)
