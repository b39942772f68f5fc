"""Bundles that the runtime's tests share, compiled once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tcexport.artifacts.contract import IndexGuard, Origin, TensorInput, TensorOutput

from .bundles import (
    add_weight,
    compiled,
    contract_of,
    dim,
    gather_rows,
    multiply_and_sizes,
    pack,
)
from .hosts import build_hosts, guarded_bundle

WEIGHT = np.arange(4, dtype=np.float32)
TABLE = np.arange(512 * 8, dtype=np.float32).reshape(512, 8)


@pytest.fixture(scope="session")
def code() -> bytes:
    """A library for ``x + w``."""
    return compiled(add_weight)


@pytest.fixture(scope="session")
def added(tmp_path_factory: pytest.TempPathFactory, code: bytes) -> Path:
    """A bundle of ``x[n, 4] + WEIGHT`` with n in 1..64."""
    contract = contract_of(
        {"x": TensorInput("x", "float32", ("n", 4))},
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 64)],
    )
    path = tmp_path_factory.mktemp("added") / "added.tcpkg"
    return pack(path, contract, {"x86-64-v3": code}, {"w": WEIGHT})


@pytest.fixture(scope="session")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of ``(TABLE[ids], ids, TABLE)`` with ids in 0..511, b in 1..8 and s in 0..512."""
    contract = contract_of(
        {"ids": TensorInput("ids", "int64", ("b", "s"))},
        [
            TensorOutput("rows", "float32", ("b", "s", 8), 0),
            TensorOutput("ids", "int64", ("b", "s"), 1),
            TensorOutput("table", "float32", (512, 8), 2),
        ],
        [dim("b", 0, 0, 1, 8), dim("s", 0, 1, 0, 512)],
        index_guards=(IndexGuard(0, 0, 511, Origin("rows of the table")),),
    )
    path = tmp_path_factory.mktemp("gathered") / "gathered.tcpkg"
    code = compiled(gather_rows)
    return pack(path, contract, {"x86-64-v3": code}, {"table": TABLE}, results=3)


@pytest.fixture(scope="session")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of ``x @ y`` in parallel loops."""
    contract = contract_of(
        {
            "x": TensorInput("x", "float32", ("n", "k")),
            "y": TensorInput("y", "float32", ("k", "m")),
        },
        [TensorOutput("xy", "float32", ("n", "m"), 0)],
        [dim("n", 0, 0, 1, None), dim("k", 0, 1, 1, None), dim("m", 1, 1, 1, None)],
    )
    path = tmp_path_factory.mktemp("parallel") / "m.tcpkg"
    code = compiled(multiply_and_sizes, parallel=True)
    return pack(path, contract, {"x86-64-v3": code}, sizes=("n",), results=2)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example program in C++; beside it libtcexport.so, and the one in C."""
    folder = tmp_path_factory.mktemp("host")
    build_hosts(folder)
    return folder / "tcexport_run"


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, code: bytes) -> Path:
    """``x[n, 4] + WEIGHT`` in a contract with something of every kind."""
    return guarded_bundle(tmp_path_factory.mktemp("guarded") / "guarded.tcpkg", code, WEIGHT)
