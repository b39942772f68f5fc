"""The hosts without Python (runtime/cpp), built once; and a bundle with something of every kind."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import tcexport.runtime
from tcexport.artifacts.contract import (
    Fixed,
    Guard,
    IndexGuard,
    Part,
    SizeOutput,
    TensorInput,
    TensorOutput,
    TupleNode,
    ValueSource,
)
from tcexport.artifacts.manifest import Entry

from .bundles import GIVEN, LINE, contract_of, dim, pack

CPP = Path(tcexport.runtime.__file__).parent / "cpp"

Inputs = dict[str, Any]


def _ffi(option: str) -> str:
    asked = [sys.executable, "-m", "tvm_ffi.config", option]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def _commands() -> tuple[list[Any], list[Any]]:
    """The C++ compiler with what the headers need, and what it links."""
    version = importlib.metadata.version("apache-tvm-ffi")
    compiler = [
        *("c++", "-std=c++17", "-O1", f"-I{CPP}", f'-DTCEXPORT_FFI_VERSION="{version}"'),
        *("-isystem", _ffi("--includedir"), "-isystem", _ffi("--dlpack-includedir")),
    ]
    library = _ffi("--libfiles")
    return compiler, [library, "-ldl", f"-Wl,-rpath,{Path(library).parent}"]


def _run(command: list[Any]) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def printed(source: str, folder: Path) -> str:
    """What a C++ program prints that includes the headers of the host."""
    compiler, link = _commands()
    (folder / "main.cc").write_text(source)
    _run([*compiler, "-O0", folder / "main.cc", "-o", folder / "main", *link])
    return _run([folder / "main"])


def build_hosts(folder: Path) -> None:
    """tcexport_run, libtcexport.so and tcexport_c in ``folder``: with cmake where it is there."""
    if shutil.which("cmake"):
        configure = ["cmake", "-S", CPP, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}"]
        configure.append("-DCMAKE_BUILD_TYPE=None")  # an optimised build takes twice as long
        commands: list[list[Any]] = [configure, ["cmake", "--build", folder]]
    else:
        plus, link = _commands()
        dlpack = _ffi("--dlpack-includedir")
        shared, here = folder / "libtcexport.so", f"-Wl,-rpath,{folder}"
        commands = [
            [*plus, CPP / "run.cc", "-o", folder / "tcexport_run", *link],
            [*plus, "-shared", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
             CPP / "tcexport.cc", "-o", shared, *link],
            ["cc", "-std=c11", f"-I{CPP}", "-isystem", dlpack, CPP / "example.c", "-o",
             folder / "tcexport_c", shared, here],
        ]  # fmt: skip
    for command in commands:
        _run(command)


def guarded_bundle(path: Path, code: bytes, weight: np.ndarray) -> Path:
    """``x[n, 4] + weight`` in a contract with something of every kind."""
    dims = [
        dim("n", 0, 0, 1, 40),
        dim("m", 1, 0, 2, 20, scale=2, offset=1, step=2, step_from=GIVEN),
    ]
    k = msgspec.structs.replace(dims[0], name="k", source=ValueSource(3), lo=-5, hi=5)
    terms = contract_of(
        {
            "x": TensorInput("x", "float32", ("n", 4)),
            "y": TensorInput("y", "float64", (("+", ("*", 2, "m"), 1), ("max", "n", "m"))),
            "ids": TensorInput("ids", "int32", ("n", 3)),
            "k": TensorInput("k", "int64", ()),
            "mode": Fixed.of("mode", "mean"),
            "level": Fixed.of("level", 3),
        },
        [
            TensorOutput("out", "float32", ("n", 4), 0),
            SizeOutput("size", ("-", ("*", "n", "k"), ("%", "m", 3))),
            Fixed.of("text", "done"),
        ],
        [*dims, k],
        guards=(
            Guard(("or", ("!=", "n", 7), ("<=", ("//", "m", 2), 3)), LINE),
            Guard(("not", ("and", (">", "n", 30), ("<", "k", 0))), LINE),
            Guard((">", ("//", "n", ("+", "k", 5)), -1), GIVEN),  # no value where k is -5
        ),
        index_guards=(IndexGuard(2, ("-", 0, "n"), ("-", "n", 1), LINE, (Part(1, 1, 3),)),),
    )
    entry = Entry("main", (0,), (), ("w",), 1)
    assert isinstance(terms.result, TupleNode)
    return pack(path, terms, {"x86-64-v3": code}, {"w": weight}, entry=entry)


def call(n: int, m: int, value: int, **more: Any) -> Inputs:
    """A call with n and m as sizes, and k as a value; ``more`` replaces arguments."""
    x = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
    y = np.ones((max(2 * m + 1, 0), max(n, m, 0)))
    ids = np.full((n, 3), n - 1, np.int32)
    return {"x": x, "y": y, "ids": ids, "k": np.array(value), "mode": "mean", "level": 3, **more}


def put(array: np.ndarray, at: Any, value: int) -> np.ndarray:
    array[at] = value
    return array


# Calls of `guarded_bundle` outside of its contract, and the codes of the answers.
VIOLATIONS: list[tuple[Inputs, str]] = [
    (call(0, 4, 0), "TC301"),
    (call(41, 4, 0), "TC301"),
    (call(3, 5, 0), "TC301"),
    (call(3, 4, 6), "TC301"),
    (call(3, 4, 0, x=np.ones((3, 5), np.float32)), "TC306"),
    (call(3, 4, 0, x=np.ones((3, 4))), "TC304"),
    (call(3, 4, 0, x=np.ones(3, np.float32)), "TC305"),
    (call(3, 4, 0, y=np.ones((10, 4))), "TC306"),
    (call(3, 4, 0, y=np.ones((9, 5))), "TC306"),
    (call(3, 4, 0, ids=np.zeros((2, 3), np.int32)), "TC306"),
    (call(3, 4, 0, k=np.array([1, 2])), "TC305"),
    (call(7, 8, 0), "TC307"),
    (call(31, 4, -1), "TC307"),
    (call(3, 4, -5), "TC307"),
    (call(3, 4, 0, ids=put(np.zeros((3, 3), np.int32), (1, 2), 3)), "TC309"),
    (call(3, 4, 0, ids=put(np.zeros((3, 3), np.int32), (2, 1), -4)), "TC309"),
    (call(3, 4, 0, mode="sum"), "TC308"),
    (call(3, 4, 0, level=4), "TC308"),
    (call(3, 4, 0, level=True), "TC308"),
    (call(3, 4, 0, level=None), "TC308"),
    (call(3, 4, 0, x="text"), "TC303"),
]
