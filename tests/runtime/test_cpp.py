"""The C++ host: the same numbers, the same refusals in the same words, and no Python in the process."""

from __future__ import annotations

import importlib.metadata
import lzma
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tcexport.runtime
from tcexport.artifacts import contract, manifest
from tcexport.artifacts.container import open_bundle
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
from tcexport.artifacts.errors import TcexportError
from tcexport.artifacts.manifest import Entry
from tcexport.runtime import load

from .bundles import GIVEN, LINE, contract_of, dim, pack, runtime_library
from .conftest import TABLE, WEIGHT

CPP = Path(tcexport.runtime.__file__).parent / "cpp"
KEPT = Path(__file__).parents[1] / "compatibility" / "2026-11-30"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example program, built with cmake where it is there."""
    build = tmp_path_factory.mktemp("host")
    if shutil.which("cmake"):
        configure = ["cmake", "-S", CPP, "-B", build, f"-DPython_EXECUTABLE={sys.executable}"]
        commands = [configure, ["cmake", "--build", build]]
    else:

        def ask(option: str) -> str:
            asked = [sys.executable, "-m", "tvm_ffi.config", option]
            return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()

        library = ask("--libfiles")
        version = importlib.metadata.version("apache-tvm-ffi")
        commands = [
            [
                *("c++", "-std=c++17", "-O1", f"-I{CPP}", f'-DTCEXPORT_FFI_VERSION="{version}"'),
                *("-isystem", ask("--includedir"), "-isystem", ask("--dlpack-includedir")),
                *(CPP / "run.cc", "-o", build / "tcexport_run", library, "-ldl"),
                f"-Wl,-rpath,{Path(library).parent}",
            ]
        ]
    for command in commands:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "tcexport_run"


Inputs = dict[str, Any]


class Both:
    """A call in a process of the C++ host and one of Python's, which must give the same."""

    def __init__(self, host: Path, folder: Path) -> None:
        self.host, self.folder = host, folder

    def __call__(self, path: Path, inputs: Inputs) -> str:
        """The text of the refusal, "" where there was none."""
        try:
            values: Any = load(path)(**inputs)
            expected = ""
        except TcexportError as error:
            expected = str(error)
        typed = []
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                np.save(self.folder / f"{name}.npy", value)
                value = self.folder / f"{name}.npy"
            typed.append(f"{name}={value}")
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        done = subprocess.run(
            [self.host, path, *typed, "-o", out], capture_output=True, text=True, timeout=60
        )
        assert done.stderr.strip() == expected
        if expected:
            code = expected.partition("[")[2][:3]
            assert done.returncode == {"TC3": 4, "TC4": 3, "TC6": 5}[code]
            return expected
        assert done.returncode == 0
        if isinstance(values, dict):
            values = tuple(values.values())
        with open_bundle(path) as bundle:
            outputs = bundle.manifest.contract.outputs
        flat = values if isinstance(values, tuple) else (values,)
        for output, value in zip(outputs, flat, strict=True):
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(np.load(out / f"{output.path}.npy"), value)
            else:
                kind = {"int": "int", "str": "str"}[type(value).__name__]
                assert f"{output.path}: {value!r} ({kind})" in done.stdout.splitlines()
        return ""


@pytest.fixture
def both(host: Path, tmp_path: Path) -> Both:
    return Both(host, tmp_path)


def kept(name: str, folder: Path) -> Path:
    """A bundle of tests/compatibility: a real export, of an earlier day."""
    path = folder / f"{name}.tcpkg"
    data = bytearray(lzma.decompress((KEPT / f"{name}.tcpkg.xz").read_bytes()))
    path.write_bytes(data)
    with open_bundle(path) as bundle:
        (runtime,) = bundle.manifest.runtimes
        start = bundle.offsets[runtime.library]
    if runtime.ffi != importlib.metadata.version("apache-tvm-ffi"):
        pytest.skip("the pin has moved since this bundle was made")
    data[start : start + len(runtime_library())] = runtime_library()
    path.write_bytes(data)
    return path


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, code: bytes) -> Path:
    """``x[n, 4] + WEIGHT`` in a contract with something of every kind."""
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
    path = tmp_path_factory.mktemp("guarded") / "guarded.tcpkg"
    entry = Entry("main", (0,), (), ("w",), 1)
    assert isinstance(terms.result, TupleNode)
    return pack(path, terms, {"x86-64-v3": code}, {"w": WEIGHT}, entry=entry)


def call(n: int, m: int, value: int, **more: Any) -> Inputs:
    """A call with n and m as sizes, and k as a value; ``more`` replaces arguments."""
    x = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
    y = np.ones((max(2 * m + 1, 0), max(n, m, 0)))
    ids = np.full((n, 3), n - 1, np.int32)
    return {"x": x, "y": y, "ids": ids, "k": np.array(value), "mode": "mean", "level": 3, **more}


def put(array: np.ndarray, at: Any, value: int) -> np.ndarray:
    array[at] = value
    return array


# --- the same format ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *(manifest.Manifest, manifest.Entry, manifest.Target, manifest.RuntimeLibrary),
        *(manifest.Member, contract.Contract, contract.Dim, contract.AxisSource),
        *(contract.ValueSource, contract.Parameter, contract.TensorInput, contract.Fixed),
        *(contract.Guard, contract.IndexGuard, contract.Part, contract.ComputedGuard),
        *(contract.TensorOutput, contract.SizeOutput, contract.Origin),
    ],
)
def test_the_host_knows_every_field_of_the_format(kind: Any) -> None:
    """It refuses what it does not know: a new field is to be held there too, or refused on purpose."""
    text = (CPP / "tcexport" / "contract.hpp").read_text()
    known = [
        set(re.findall(r'"(\w+)"', each)) for each in re.findall(r"Only\(\{(.*?)\}", text, re.S)
    ]
    assert any(each.issuperset(kind.__struct_fields__) for each in known)


# --- the same numbers -----------------------------------------------------------------------------


def test_no_python_is_in_the_process(host: Path) -> None:
    linked = subprocess.run(["ldd", host], capture_output=True, text=True, check=True).stdout
    assert "libtvm_ffi" in linked and "python" not in linked.lower().replace("python3.", "")
    assert not [line for line in linked.splitlines() if line.strip().startswith("libpython")]


def test_the_same_numbers(
    both: Both, added: Path, gathered: Path, guarded: Path, tmp_path: Path
) -> None:
    for n in (1, 64):
        assert both(added, {"x": np.random.rand(n, 4).astype(np.float32)}) == ""
    assert both(gathered, {"ids": np.array([[0, 511, 3]])}) == ""
    assert both(gathered, {"ids": np.zeros((2, 0), np.int64)}) == ""
    assert both(guarded, call(3, 4, 2)) == ""
    assert TABLE.shape == (512, 8)


@pytest.mark.parametrize("name", ["plus_one", "perceptron", "words"])
def test_the_same_numbers_of_real_exports(both: Both, tmp_path: Path, name: str) -> None:
    with np.load(KEPT / f"{name}.npz") as arrays:
        inputs = [arrays[key] for key in arrays.files if key.startswith("in")]
    path = kept(name, tmp_path)
    with open_bundle(path) as bundle:
        paths = [each.path for each in bundle.manifest.contract.inputs]
    assert both(path, dict(zip(paths, inputs, strict=True))) == ""


# --- the same refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
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
    ],
)
def test_the_same_refusals(both: Both, guarded: Path, inputs: Inputs, wanted: str) -> None:
    if wanted == "TC303":  # what is no tensor has other words in each language
        done = subprocess.run(
            [both.host, guarded, *(f"{n}=text" for n in inputs)], capture_output=True, text=True
        )
        assert done.returncode == 4 and "[TC303] x: got 'text' (str), needs a tensor" in done.stderr
        return
    assert both(guarded, inputs).startswith(f"[{wanted}] ")


def test_an_index_outside_of_the_part_that_is_read_passes(both: Both, guarded: Path) -> None:
    assert both(guarded, call(3, 4, 0, ids=put(np.zeros((3, 3), np.int32), (1, 0), 99))) == ""


def test_any_sizes_are_answered_alike(both: Both, guarded: Path) -> None:
    rng = random.Random(0)
    codes = set()
    for _ in range(40):
        n, m, k = rng.randint(0, 42), rng.choice((2, 4, 8, 12, 21)), rng.randint(-6, 6)
        codes.add(both(guarded, call(n, m, k))[1:6])
    assert {"", "TC301", "TC307"} <= codes


def test_what_the_compiled_code_finds_is_told_alike(both: Both, tmp_path: Path) -> None:
    path = kept("words", tmp_path)
    ids, mask = np.zeros((2, 4), np.int64), np.ones((2, 4), np.int64)
    assert both(path, {"ids": ids, "mask": mask}) == ""
    assert both(path, {"ids": ids, "mask": mask * 50}).startswith("[TC309] ")
    assert both(path, {"ids": ids + 50, "mask": mask}).startswith("[TC309] ")
    assert both(path, {"ids": ids[:, :3], "mask": mask[:, :3]}).startswith("[TC301] ")


def test_missing_and_unknown_inputs_are_refused(host: Path, added: Path) -> None:
    for typed, words in (([], "x: is missing"), (["x=1", "z=1"], "z: is not an input")):
        done = subprocess.run([host, added, *typed], capture_output=True, text=True)
        assert done.returncode == 4 and f"[TC302] {words}" in done.stderr


# --- the same files -------------------------------------------------------------------------------


def changed(at: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + value + data[at:][len(value) :]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        lambda data: b"hello",
        lambda data: b"",
        changed(0, b"PK\x03\x05"),
        lambda data: data.replace(b"\x7fELF", b"\x7fELG", 1),
        lambda data: data.replace(b'"format_version": 1', b'"format_version": 2'),
        lambda data: data.replace(
            b"targets/cpu-x86-64-v3/model.so", b"targets/cpu-x86-64-v3/other.so"
        ),
    ],
)
def test_a_damaged_file_is_refused_by_both(
    host: Path, added: Path, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "m.tcpkg"
    path.write_bytes(change(added.read_bytes()))
    with pytest.raises(TcexportError) as caught:
        load(path)
    done = subprocess.run([host, path, "x=1"], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.partition(" ")[0] == str(caught.value).partition(" ")[0]
    assert str(path) in done.stderr


def test_what_is_no_file_is_told_alike(host: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path("/dev/null")):
        with pytest.raises(TcexportError) as caught:
            load(path)
        done = subprocess.run([host, path], capture_output=True, text=True)
        assert (done.returncode, done.stderr.strip()) == (3, str(caught.value))


def test_another_version_of_the_ffi_is_refused(host: Path, added: Path, tmp_path: Path) -> None:
    with open_bundle(added) as bundle:
        runtimes = [
            msgspec.structs.replace(each, ffi="0.1.99") for each in bundle.manifest.runtimes
        ]
        terms = bundle.manifest.contract
        code = bytes(bundle.view(bundle.manifest.targets[0].library))
    path = pack(
        tmp_path / "m.tcpkg", terms, {"x86-64-v3": code}, {"w": WEIGHT},
        runtimes=tuple(runtimes),
    )  # fmt: skip
    done = subprocess.run([host, path, "x=1"], capture_output=True, text=True)
    assert done.returncode == 3 and "built for apache-tvm-ffi 0.1.99, found" in done.stderr
