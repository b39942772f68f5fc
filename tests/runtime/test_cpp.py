"""The C++ host: the same numbers, the same refusals in the same words, and no Python in the process."""

from __future__ import annotations

import importlib.metadata
import json
import lzma
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.artifacts import contract, manifest, states
from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.contract import TensorInput, TensorOutput, ValueSource
from tcexport.artifacts.errors import GuardError, Location, TcexportError
from tcexport.artifacts.external import move_outside
from tcexport.artifacts.manifest import Entry, Target, Variant
from tcexport.artifacts.platforms import CPU_LEVELS
from tcexport.runtime import load
from tcexport.tools.fuzz_reader import Seed, described, sealed

from .bundles import compiled, contract_of, dim, multiply_and_sizes, pack, runtime_library
from .conftest import TABLE, WEIGHT
from .hosts import CPP, VIOLATIONS, Inputs, call, printed, put
from .test_signature import Key, signed_by

KEPT = Path(__file__).parents[1] / "compatibility" / "2026-11-30"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")


class Both:
    """A call in a process of the C++ host and one of Python's, which must give the same."""

    def __init__(self, host: Path, folder: Path) -> None:
        self.host, self.folder = host, folder

    def __call__(self, path: Path, inputs: Inputs) -> str:
        """The text of the refusal, "" where there was none."""
        try:
            values: Any = load(path).session()(**inputs)
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
            assert done.returncode == {"TC0": 2, "TC3": 4, "TC4": 3, "TC6": 5}[code]
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


# --- the same format ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *(manifest.Manifest, manifest.Entry, manifest.Target, manifest.RuntimeLibrary),
        *(manifest.Member, contract.Contract, contract.Dim, contract.AxisSource),
        *(contract.ValueSource, contract.Parameter, contract.TensorInput, contract.Fixed),
        *(contract.Guard, contract.IndexGuard, contract.Part, contract.ComputedGuard),
        *(contract.TensorOutput, contract.SizeOutput, contract.Origin),
        *(manifest.Variant, states.StateTensor, manifest.Provenance, Location),
        *(contract.Leaf, contract.TupleNode, contract.ListNode, contract.DictNode),
        *(contract.NamedTupleNode, contract.AbsentNode, manifest.CudaCode),
        *(manifest.Parameters, manifest.SourceTensor),
    ],
)
def test_the_host_knows_every_field_of_the_format(kind: Any) -> None:
    """It refuses what it does not know: a new field is to be held there too, or refused on purpose."""
    rooms = ("contract", "cuda", "manifest", "recipes", "structure")
    text = "".join((CPP / "tcexport" / f"{room}.hpp").read_text() for room in rooms)
    known = [
        set(re.findall(r'"(\w+)"', each)) for each in re.findall(r"Only\(\{(.*?)\}", text, re.S)
    ]
    assert any(each.issuperset(kind.__struct_fields__) for each in known)


# --- the same numbers -----------------------------------------------------------------------------


def test_the_host_knows_every_cpu_level_as_python_does(tmp_path: Path) -> None:
    shown = printed(
        """
        #include <iostream>
        #include "tcexport/machine.hpp"
        int main() {
          for (const auto& [name, level] : tcexport::detail::Levels()) {
            std::cout << name << " " << level.rank << " " << level.machine;
            for (const auto& flag : level.flags) std::cout << " " << flag;
            std::cout << "\\n";
          }
        }
        """,
        tmp_path,
    )
    wanted = {
        " ".join([level.name, str(level.rank), level.platform.machine, *level.flags])
        for level in CPU_LEVELS.values()
    }
    assert set(shown.splitlines()) == wanted


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


@pytest.mark.parametrize(("inputs", "wanted"), VIOLATIONS)
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


def test_a_size_beyond_64_bits_is_refused_alike(both: Both, tmp_path: Path) -> None:
    dims = [dim("n", 0, 0, 1, None), dim("k", 0, 1, 1, None), dim("m", 1, 1, 1, None)]
    count = msgspec.structs.replace(dims[0], name="v", source=ValueSource(2))
    terms = contract_of(
        {
            "x": TensorInput("x", "float32", ("n", "k")),
            "y": TensorInput("y", "float32", ("k", "m")),
            "v": TensorInput("v", "int64", ()),
        },
        [
            TensorOutput("xy", "float32", ("n", "m"), 0),
            TensorOutput("ones", "float32", (None,), 1),
        ],
        [*dims, count],
    )
    code = compiled(multiply_and_sizes)
    entry = Entry("main", (0, 1), (("*", "v", "v"),), (), 2)
    path = pack(tmp_path / "m.tcpkg", terms, {"x86-64-v3": code}, entry=entry)
    x = np.ones((2, 2), np.float32)
    assert both(path, {"x": x, "y": x, "v": np.array(3)}) == ""
    told = both(path, {"x": x, "y": x, "v": np.array(2**32)})
    assert told == f"[TC307] the call: got a size of {2**64}, needs sizes of 64 bits"
    with pytest.raises(GuardError, match="TC307"):  # the short way, which a session does not go
        load(path)(x, x, np.array(2**32))


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


@pytest.mark.parametrize("seed", ["abc", "", "1.5", "99999999999999999999"])
def test_a_seed_that_is_no_integer_is_refused(host: Path, added: Path, seed: str) -> None:
    done = subprocess.run(
        [host, added, "--seed", seed], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "--seed" in done.stderr and "integer" in done.stderr


def test_a_seed_goes_to_the_session(host: Path, added: Path) -> None:
    done = subprocess.run(
        [host, added, "--seed", "-5"], capture_output=True, text=True, check=False
    )
    with pytest.raises(tcexport.UsageError) as wanted:
        load(added).session().seed(-5)
    assert wanted.value.code in done.stderr and done.returncode == 2


def test_variants_and_devices_are_asked_for_on_the_command_line(
    host: Path, ranges: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))
    told = {}
    for words in ("--variant few", "--variant many", "--variant all", "--device cuda", ""):
        command = [host, ranges, f"x={tmp_path / 'x.npy'}", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told[words] = done.returncode, (done.stdout + done.stderr).splitlines()[0]
    assert told["--variant few"] == told[""] == (0, "variant: few")
    assert told["--variant many"] == (4, "[TC301] x axis 0 (n): got 3, needs n >= 16")
    assert told["--variant all"][0] == 2 and "[TC006] variant='all'" in told["--variant all"][1]
    assert (
        told["--device cuda"][0] == 3 and "binaries for the CPU alone" in told["--device cuda"][1]
    )


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


# --- what else a bundle may be ---------------------------------------------------------------------


def adds(weight: str) -> Entry:
    """How to call the code for ``x + weight``."""
    return Entry("main", (0,), (), (weight,), 1)


def in_ranges(path: Path, code: bytes, low: int | None = 16, **own: Any) -> Path:
    """``x[n, 4] + WEIGHT`` by variants: one for n in 1..8, one for n in low..64, or for all.

    ``own``: how the binary is called otherwise, with ``u`` or ``v`` (WEIGHT + 10 and + 20) for ``w``.
    """

    def terms(low: int, high: int) -> contract.Contract:
        return contract_of(
            {"x": TensorInput("x", "float32", ("n", 4))},
            [TensorOutput("out", "float32", ("n", 4), 0)],
            [dim("n", 0, 0, low, high)],
        )

    many = None if low is None else terms(low, 64)
    variants = (Variant("few", adds("w"), terms(1, 8)), Variant("many", adds("w"), many))
    library = "targets/cpu-x86-64-v3/model.so"
    target = Target("cpu", "linux", "x86_64", "x86-64-v3", "2.17", library, **own)
    return pack(
        path,
        terms(1, 64),
        {"x86-64-v3": code},
        {"w": WEIGHT, "u": WEIGHT + 10, "v": WEIGHT + 20},
        entry=adds("w"),
        variants=variants,
        targets=(target,),
    )


@pytest.fixture(scope="session")
def ranges(tmp_path_factory: pytest.TempPathFactory, code: bytes) -> Path:
    return in_ranges(tmp_path_factory.mktemp("ranges") / "ranges.tcpkg", code)


def test_variants_take_their_calls_and_refuse_the_others_alike(both: Both, ranges: Path) -> None:
    codes = {}
    for n in (0, 1, 8, 9, 15, 16, 64, 65):
        codes[n] = both(ranges, {"x": np.random.rand(n, 4).astype(np.float32)})[1:6]
    assert codes == {
        0: "TC301", 1: "", 8: "", 9: "TC320", 15: "TC320", 16: "", 64: "", 65: "TC301"
    }  # fmt: skip


def test_each_variant_says_where_what_it_needs_comes_from(both: Both, ranges: Path) -> None:
    told = both(ranges, {"x": np.ones((12, 4), np.float32)})
    assert "variant few: x axis 0 (n): got 12, needs n <= 8; from: self.position[:seq]" in told
    assert "variant many: x axis 0 (n): got 12, needs n >= 16; from: given with --dynamic" in told


def test_a_binary_is_called_as_it_says_itself(both: Both, code: bytes, tmp_path: Path) -> None:
    def answers(path: Path, n: int, plus: int) -> None:
        x = np.random.rand(n, 4).astype(np.float32)
        np.testing.assert_array_equal(load(path)(x), x + (WEIGHT + plus))
        assert both(path, {"x": x}) == ""

    for_each = in_ranges(tmp_path / "each.tcpkg", code, entries=(adds("u"), adds("v")))
    answers(for_each, 3, plus=10)
    answers(for_each, 20, plus=20)
    assert both(for_each, {"x": np.ones((12, 4), np.float32)}).startswith("[TC320] ")
    for_all = in_ranges(tmp_path / "all.tcpkg", code, low=None, entry=adds("v"))
    answers(for_all, 3, plus=20)
    answers(for_all, 12, plus=20)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["targets"][0]["entries"].pop(),
        lambda data: data["targets"][0].update(entry=data["entry"]),
        lambda data: data["targets"][0].update(entry=data["entry"], entries=[]),
        lambda data: data.pop("variants"),
        lambda data: data["targets"][0]["entries"][1].update(inputs=[1]),
    ],
)
def test_a_binary_that_does_not_fit_the_variants_is_refused_by_both(
    both: Both, code: bytes, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    path = in_ranges(tmp_path / "m.tcpkg", code, entries=(adds("u"), adds("v")))
    seed = Seed.read(path)
    data = json.loads(seed.head)
    change(data)
    path.write_bytes(sealed(described(data, seed.members), seed.members))
    with pytest.raises(TcexportError, match="TC401"):
        load(path)
    done = subprocess.run([both.host, path], capture_output=True, text=True)
    assert done.returncode == 3 and "[TC401]" in done.stderr


def test_weights_beside_the_bundle(both: Both, added: Path, tmp_path: Path) -> None:
    path = tmp_path / "outside.tcpkg"
    beside = move_outside(added, path)
    assert beside is not None
    x = {"x": np.ones((2, 4), np.float32)}
    assert both(path, x) == ""
    data = beside.read_bytes()
    beside.write_bytes(data[:-1])
    assert "bytes, and" in both(path, x)
    beside.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert both(path, x).startswith("error[TC402] ")
    beside.unlink()
    assert both(path, x).startswith("error[TC410] ")


class Counter(nn.Module):
    """Adds to its state, and looks up a place in a table that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("calls", torch.tensor(7))
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.total += x.sum(0)
        self.calls += 1
        return self.total.clone(), self.calls.clone(), self.table[at * 2]


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counter") / "counter.tcpkg"
    tcexport.export(
        Counter().eval(),
        (torch.ones(3, 4), torch.tensor([1])),
        axes={"x": ("n", None), "at": (None,)},
        dynamic={"n": (1, 8)},
        out=path,
        targets=("cpu:x86-64-v3",),
    )
    return path


def test_a_model_with_state_gives_the_same(both: Both, counter: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert both(counter, {"x": x, "at": np.array([2])}) == ""
    assert both(counter, {"x": x, "at": np.array([3])}).startswith("[TC309] ")
    assert both(counter, {"x": x[:0], "at": np.array([3])}).startswith("[TC301] ")


def test_signatures_are_verified_alike(host: Path, added: Path, tmp_path: Path) -> None:
    path, mine, other = tmp_path / "m.tcpkg", Key(tmp_path, "mine"), Key(tmp_path, "other")
    shutil.copy(added, path)
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    revoking = tmp_path / "revoking"

    def answer(*keys: Path) -> str:
        """What both say, the first line of it; "" where the bundle is trusted."""
        try:
            load(path, require_signature=list(keys))
            expected = ""
        except TcexportError as error:
            expected = str(error)
        asked = [word for key in keys for word in ("--key", key)]
        done = subprocess.run(
            [host, path, f"x={tmp_path / 'x.npy'}", *asked], capture_output=True, text=True
        )
        assert done.returncode == (
            0 if not expected else 2 if expected.startswith("error[TC01") else 3
        )
        assert done.stderr.strip() == expected
        return expected.partition("\n")[0]

    assert "[TC408] " in answer(mine.public)
    signed_by(path, mine)
    assert answer(mine.public) == answer(other.public, mine.public) == ""
    assert "not signed by a trusted key" in answer(other.public)
    assert "private key" in answer(mine.private)
    assert "[TC014] cannot read" in answer(tmp_path / "nowhere")
    good = path.with_name("m.tcpkg.sig").read_bytes()
    for line, code in (
        (f"revoked {mine.id} lost", "TC409"),
        (f"revoked {'0' * 64}", ""),
        (f"# revoked {mine.id}", ""),
        ("revoked xyz", "TC014"),
    ):
        revoking.write_text(f"{line}\n{mine.public.read_text()}")
        assert f"[{code}]" in answer(revoking) if code else not answer(revoking)
    signed_by(path, other)
    assert answer(mine.public) == answer(other.public) == ""
    forged = good.replace(b'"value": "', b'"value": "AAAA', 1)
    path.with_name("m.tcpkg.sig").write_bytes(forged)
    assert "is not valid" in answer(mine.public)
    path.with_name("m.tcpkg.sig").write_bytes(good)
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert "of other bytes" in answer(mine.public)
