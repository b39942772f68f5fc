"""What the check of a call costs, without a model: ``python -m tcexport.tools.guard_cost``.

Three contracts: two inputs with seven ranges and guards, 64 tensors, and 512 ids whose values are
looked at. Then the first of them again with six variants, for a call that the last of them takes and
for one that is left to the general code. The time is that of the generated check alone, on numpy
arrays; the smallest of several runs.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np
from msgspec.structs import replace

from ..artifacts.contract import (
    AxisSource,
    Contract,
    Dim,
    Guard,
    IndexGuard,
    Leaf,
    Origin,
    Parameter,
    TensorInput,
    TupleNode,
    checked,
)
from ..runtime.guards import Part, compile_checks, compile_dispatch

_ORIGIN = Origin("a benchmark")
_RUNS = 7


@click.command()
def command() -> None:
    """Print microseconds per check."""
    for what, contract, flat in (_two_inputs(), _many_tensors(64), _ids(512)):
        click.echo(f"{microseconds(contract, flat):6.2f} us  {what}")
    for what, seq in (("last of 6 variants", 512), ("none of 6 variants", 128)):
        click.echo(f"{dispatched(seq):6.2f} us  2 inputs, 7 ranges and guards, {what}")


def microseconds(contract: Contract, flat: Sequence[Any]) -> float:
    """The time of one check of a call that meets the contract.

    Raises:
        ValueError: it does not.
    """
    return _timed(compile_checks(checked(contract), []).numpy, flat)


def dispatched(seq: int) -> float:
    """The time in which a call of batch 4 and ``seq`` finds its code among six variants, of batch 4 and
    one sequence length each, 512 the last, and the general code.

    Raises:
        ValueError: the call is refused.
    """
    _, contract, _ = _two_inputs()
    dims = {dim.name: dim for dim in contract.dims}
    parts = [
        Part(
            replace(
                contract,
                dims=(replace(dims["batch"], lo=4, hi=4), replace(dims["seq"], lo=size, hi=size)),
            ),
            ("batch", "seq"),
        )
        for size in (16, 32, 64, 256, 384, 512)
    ]
    checks = compile_dispatch(checked(contract), [*parts, Part(contract, ("batch", "seq"))])
    return _timed(checks.numpy, [np.zeros((4, seq), np.int64), np.zeros((4, seq), bool)])


def _timed(check: Callable[[Sequence[Any]], Any], flat: Sequence[Any]) -> float:
    if check(flat) is None:
        raise ValueError("the call is refused, so that its time says nothing")
    timer = timeit.Timer(lambda: check(flat))
    count, _ = timer.autorange()
    return 1e6 * min(timer.repeat(_RUNS, count)) / count


def _contract(inputs: Sequence[TensorInput], dims: Sequence[Dim], **guards: Any) -> Contract:
    parameters = tuple(
        Parameter(item.path, "either", Leaf(index)) for index, item in enumerate(inputs)
    )
    given = {"guards": (), "index_guards": (), **guards}
    return Contract(
        tuple(dims), parameters, tuple(inputs), given["guards"], given["index_guards"], (),
        TupleNode(()),
    )  # fmt: skip


def _dim(name: str, input: int, axis: int, hi: int) -> Dim:
    return Dim(name, AxisSource(input, axis), 1, hi, _ORIGIN, _ORIGIN)


def _two_inputs() -> tuple[str, Contract, list[Any]]:
    """A transformer's ids and mask: two ranges, two equal axes, three guards."""
    inputs = [
        TensorInput("ids", "int64", ("batch", "seq")),
        TensorInput("mask", "bool", ("batch", "seq")),
    ]
    guards = (
        Guard(("==", ("%", "seq", 8), 0), _ORIGIN),
        Guard(("<=", ("*", "batch", "seq"), 16384), _ORIGIN),
        Guard(("!=", ("+", "batch", "seq"), 7), _ORIGIN),
    )
    dims = [_dim("batch", 0, 0, 16), _dim("seq", 0, 1, 1024)]
    flat = [np.zeros((4, 128), np.int64), np.zeros((4, 128), bool)]
    return "2 inputs, 7 ranges and guards", _contract(inputs, dims, guards=guards), flat


def _many_tensors(count: int) -> tuple[str, Contract, list[Any]]:
    """Keys and values of a cache: one batch and one length, and fixed axes."""
    inputs = [
        TensorInput(f"x{index}", "float32", ("batch", 8, "seq", 64)) for index in range(count)
    ]
    dims = [_dim("batch", 0, 0, 16), _dim("seq", 0, 2, 1024)]
    flat = [np.zeros((1, 8, 4, 64), np.float32) for _ in range(count)]
    return f"{count} tensors, {4 * count} axes", _contract(inputs, dims), flat


def _ids(count: int) -> tuple[str, Contract, list[Any]]:
    inputs = [TensorInput("ids", "int64", ("batch", "seq"))]
    dims = [_dim("batch", 0, 0, 16), _dim("seq", 0, 1, 1024)]
    guards = (IndexGuard(0, 0, 29999, _ORIGIN),)
    flat = [np.arange(count).reshape(1, count)]
    return f"{count} ids looked at", _contract(inputs, dims, index_guards=guards), flat


if __name__ == "__main__":
    command()
