"""What the check of a call costs, without a model: ``python -m tcexport.tools.guard_cost``.

Three contracts: two inputs with seven ranges and guards, 64 tensors, and 512 ids whose values are
looked at. The time is that of the generated check alone, on numpy arrays; the smallest of several runs.
"""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

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
from ..runtime.guards import compile_checks

_ORIGIN = Origin("a benchmark")
_RUNS = 7


@click.command()
def command() -> None:
    """Print microseconds per check."""
    for what, contract, flat in (_two_inputs(), _many_tensors(64), _ids(512)):
        click.echo(f"{microseconds(contract, flat):6.2f} us  {what}")


def microseconds(contract: Contract, flat: Sequence[Any]) -> float:
    """The time of one check of a call that meets the contract.

    Raises:
        ValueError: it does not.
    """
    check = compile_checks(checked(contract), []).numpy
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
