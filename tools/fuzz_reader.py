"""Throws damaged bundles at the reader: ``python -m tcexport.tools.fuzz_reader --runs 100000``.

Each run changes a file of the corpus (bytes, fields of the ZIP, the manifest's JSON, the weights;
sizes, CRCs and digests are set right again where that leads further in) and reads it as `load` would
before it maps code. The answer must be a refusal with a code, or a bundle: no other exception, no
crash, at most 2 s of the processor and 256 MiB. A run follows from the seed and its number alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import re
import resource
import signal
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..artifacts import container
from ..artifacts.container import open_bundle
from ..artifacts.contract import ContractError, SizeOutput, TensorInput
from ..artifacts.errors import BundleError
from ..artifacts.manifest import MANIFEST_NAME, WEIGHTS_NAME
from ..artifacts.weights import WeightsError, read_weights
from ..runtime.guards import compile_checks
from ..runtime.structure import builder

CORPUS = Path("tests/attacks/corpus")
SECONDS = 2.0  # of the processor
MEMORY = 256 << 20
_FORMAT_CODES = ("TC401", "TC402", "TC403", "TC410")


# --- reading ----------------------------------------------------------------------------------------


def examine(path: Path) -> str:
    """Read a bundle with all that `load` does before it maps code; the code of the refusal, or
    "read".

    Raises:
        Exception: what a reader must never raise.
    """
    try:
        bundle = open_bundle(path)
        bundle.verify()
    except BundleError as error:
        if error.code not in _FORMAT_CODES:
            raise
        str(error)
        return error.code
    contract, entry = bundle.manifest.contract, bundle.manifest.entry
    sized = [each for each in contract.outputs if isinstance(each, SizeOutput)]
    try:
        checks = compile_checks(contract, [*entry.sizes, *(output.value for output in sized)])
        builder(contract.result)
        if entry.weights:
            read_weights(bundle.view(WEIGHTS_NAME))
    except (ContractError, WeightsError):
        return "TC401"
    try:
        checks.numpy([_argument(item) for item in contract.inputs])
    except Exception as error:  # `load` takes any of them for a call to be explained
        return f"read, the call: {type(error).__name__}"
    return "read"


def _argument(item: Any) -> Any:
    if not isinstance(item, TensorInput):
        return item.value
    sizes = [size if isinstance(size, int) and 0 <= size < 8 else 1 for size in item.shape]
    try:
        return np.ones(sizes, item.dtype)
    except TypeError:
        return None


# --- files ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seed:
    """A sound file of the corpus, and its parts."""

    data: bytes
    head: bytes
    members: tuple[tuple[str, bytes], ...]

    @classmethod
    def read(cls, path: Path) -> Seed:
        with open_bundle(path) as bundle:
            bundle.verify()
            members = tuple(
                (each.name, bytes(bundle.view(each.name))) for each in bundle.manifest.members
            )
        data = path.read_bytes()
        _, *rest = struct.unpack_from("<4s5H3L2H", data)
        start = 30 + rest[-2] + rest[-1]
        return cls(data, data[start : start + rest[6]], members)


def sealed(head: bytes, members: Sequence[tuple[str, bytes]]) -> bytes:
    """A file in the form of a bundle around a manifest's text and members, whatever they say."""
    contents = [(MANIFEST_NAME, head), *members]
    layout = container._layout(
        [container._Entry(name, len(content), zlib.crc32(content)) for name, content in contents]
    )
    parts = [
        part
        for (_, header), (_, content) in zip(layout.headers, contents, strict=True)
        for part in (header, content)
    ]
    return b"".join(parts) + layout.tail


def described(data: Any, members: Sequence[tuple[str, bytes]]) -> bytes:
    """A manifest's text with the sizes and digests that the members have."""
    listed = [
        {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members
    ]
    return json.dumps({**data, "members": listed}).encode()


# --- mutations --------------------------------------------------------------------------------------

_NUMBERS = (
    0, 1, -1, 2, 7, 32, 33, 255, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63,
    2**64, 10**400, -(2**63), 0.5, 1e308,
)  # fmt: skip
_TEXTS = (
    "", "n", "m", "manifest.json", "../x", "/x", "a\0b", "\x1b[2J", "__import__('os')", "x" * 300,
    "9" * 5000, "nan", "-0.0", "tensor", "leaf", "axis", "<=", "//", "float32", "bfloat16",
)  # fmt: skip


def mutate(seeds: Sequence[Seed], rng: random.Random) -> bytes:
    """A file near one of the corpus."""
    seed = rng.choice(seeds)
    return rng.choice(_KINDS)(seed, seeds, rng)


def _bytes(seed: Seed, seeds: Sequence[Seed], rng: random.Random) -> bytes:
    data = seed.data
    for _ in range(rng.randint(1, 3)):
        data = _changed(data, rng.choice(seeds).data, rng, _places(data, rng))
    return data


def _places(data: bytes, rng: random.Random) -> int:
    """Mostly where the structure is: weights and padding are the most of a file."""
    if rng.random() < 0.2:
        return rng.randrange(len(data) + 1)
    if rng.random() < 0.5:
        return max(0, len(data) - rng.randrange(400))
    at = data.find(b"PK", rng.randrange(len(data) + 1))
    return max(at, 0) + rng.randrange(80)


def _changed(data: bytes, other: bytes, rng: random.Random, at: int) -> bytes:
    length = rng.choice((1, 1, 2, 4, 8, rng.randint(1, 5000)))
    kind = rng.randrange(7)
    if kind == 0:
        return data[:at] + rng.randbytes(min(length, 64)) + data[at + length :]
    if kind == 1:
        return data[:at] + data[at + length :]
    if kind == 2:
        return data[:at] + rng.randbytes(min(length, 64)) + data[at:]
    if kind == 3:
        start = rng.randrange(len(other))
        return data[:at] + other[start : start + length] + data[at + length :]
    if kind == 4:
        return data[:at]
    if kind == 5:
        return data[:at] + other[rng.randrange(len(other)) :]
    if at >= len(data):
        return data + data[-length:]
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _fields(seed: Seed, seeds: Sequence[Seed], rng: random.Random) -> bytes:
    """One or two fields of the ZIP's records."""
    data = bytearray(seed.data)
    records = ((b"PK\x03\x04", (4, 6, 8, 10, 12, 14, 18, 22, 26, 28)),
               (b"PK\x01\x02", (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 30, 32, 34, 36, 38, 42)),
               (b"PK\x05\x06", (4, 6, 8, 10, 12, 16, 20)))  # fmt: skip
    for _ in range(rng.randint(1, 2)):
        mark, offsets = rng.choice(records)
        found = [each.start() for each in re.finditer(mark, data)]
        if not found:
            break
        at = rng.choice(found) + rng.choice(offsets)
        form = rng.choice(("<H", "<L"))
        size = struct.calcsize(form)
        if at + size > len(data):
            continue
        now = struct.unpack_from(form, data, at)[0]
        value = rng.choice((0, 1, 8, 0xFFFF, 0xFFFFFFFF, now + 1, now - 1, rng.getrandbits(32)))
        struct.pack_into(form, data, at, value % (1 << 8 * size))
    return bytes(data)


def _text(seed: Seed, seeds: Sequence[Seed], rng: random.Random) -> bytes:
    """The bytes of the manifest, in a file of perfect form."""
    head = _changed(seed.head, rng.choice(seeds).head, rng, rng.randrange(len(seed.head)))
    return sealed(head, seed.members)


def _json(seed: Seed, seeds: Sequence[Seed], rng: random.Random) -> bytes:
    """Values of the manifest, with sizes and digests that are right."""
    data = json.loads(seed.head)
    for _ in range(rng.randint(1, 4)):
        edit_json(data, rng)
    if not isinstance(data, dict):
        return sealed(json.dumps(data).encode(), seed.members)
    if rng.random() < 0.8:
        return sealed(described(data, seed.members), seed.members)
    return sealed(json.dumps(data).encode(), seed.members)


def edit_json(data: Any, rng: random.Random) -> None:
    """Change one value within decoded JSON, in place."""
    places = list(_walk(data))
    if not places:
        return
    owner, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0 and isinstance(owner, dict):
        del owner[key]
    elif kind == 0:
        owner.pop(key)
    elif kind == 1:
        owner[key] = rng.choice(_NUMBERS)
    elif kind == 2:
        owner[key] = rng.choice(_TEXTS)
    elif kind == 3:
        other, name = rng.choice(places)
        owner[key] = json.loads(json.dumps(other[name]))
    elif kind == 4:
        owner[key] = rng.choice((None, True, [], {}, float("nan"), float("inf")))
    elif kind == 5:
        owner[key] = _expression(rng, rng.choice((3, 6, 100)))
    elif kind == 6 and isinstance(owner, list):
        owner.extend([owner[key]] * rng.choice((1, 2, 100)))
    elif isinstance(owner[key], int):
        owner[key] += rng.choice((-1, 1, 1000))
    else:
        owner[key] = [owner[key]]


def _walk(data: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    stack = [data]
    while stack:
        here = stack.pop()
        keys = here.keys() if isinstance(here, dict) else range(len(here))
        for key in keys:
            found.append((here, key))
            if isinstance(here[key], (dict, list)):
                stack.append(here[key])
    return found


def _expression(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(("n", "m", 0, 1, -1, 2**62, 2**63, "k"))
    operator = rng.choice(("+", "-", "*", "//", "%", "min", "max", "==", "<", "and", "not", "**"))
    if depth > 20:  # a chain, not a tree
        return [operator, _expression(rng, depth - 1), 1]
    return [operator, *(_expression(rng, depth - 1) for _ in range(rng.choice((1, 2, 2, 2, 3))))]


def _weights(seed: Seed, seeds: Sequence[Seed], rng: random.Random) -> bytes:
    """The weights, with digests that are right."""
    members = dict(seed.members)
    if WEIGHTS_NAME not in members:
        return _json(seed, seeds, rng)
    content = members[WEIGHTS_NAME]
    (length,) = struct.unpack_from("<Q", content)
    if rng.random() < 0.3:
        at = rng.randrange(8 + length)
        content = _changed(content, content, rng, at)
    else:
        header = json.loads(content[8 : 8 + length])
        edit_json(header, rng)
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 64)
        content = struct.pack("<Q", len(text)) + text + content[8 + length :]
    members[WEIGHTS_NAME] = content
    parts = tuple(members.items())
    return sealed(described(json.loads(seed.head), parts), parts)


_KINDS: tuple[Callable[[Seed, Sequence[Seed], random.Random], bytes], ...] = (
    _bytes,
    _fields,
    _text,
    _json,
    _json,
    _weights,
)


# --- many -------------------------------------------------------------------------------------------


class _TooLong(BaseException):
    """Not an Exception: nothing of the reader may catch it."""


def _too_long(signum: int, frame: Any) -> None:
    raise _TooLong


def _set_limits(seconds: float) -> None:
    """Of the processor's time, so that other work does not count; and of the clock, for one that
    waits."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 30 * seconds)


def fuzz(seeds: Sequence[Seed], first: int, runs: int, seed: int, begun: Any) -> Counter[str]:
    """Runs ``first`` to ``first + runs - 1``, in this process, which gets a limit of memory.

    ``begun`` (four bytes or more) is told the number of each run before it begins.

    Raises:
        AssertionError: a run that ended neither in a refusal nor in a bundle; its number is named.
    """
    found: Counter[str] = Counter()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    for limit in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(limit, _too_long)
    for number in range(first, first + runs):
        begun[:4] = struct.pack("<L", number)
        handle = os.memfd_create("fuzz")  # a file on a disk takes most of the time
        try:
            with open(handle, "wb", closefd=False) as file:
                file.write(mutate(seeds, random.Random(f"{seed}:{number}")))
            _set_limits(SECONDS)
            found[examine(Path(f"/proc/self/fd/{handle}"))] += 1
        except BaseException as error:
            raise AssertionError(f"run {number} of seed {seed}: {error!r:.300}") from error
        finally:
            _set_limits(0)
            os.close(handle)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tcexport.tools.fuzz_reader")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    asked = parser.parse_args(arguments)
    seeds = [Seed.read(path) for path in sorted(asked.corpus.glob("*.tcpkg"))]
    if not seeds:
        print(f"no *.tcpkg in {asked.corpus}", file=sys.stderr)
        return 2
    begun = mmap.mmap(-1, mmap.PAGESIZE)
    start = time.perf_counter()
    sys.stdout.flush()
    child = os.fork()  # a crash of the reader ends the child, and its run is known
    if child == 0:
        status = 1
        try:
            found = fuzz(seeds, asked.first, asked.runs, asked.seed, begun)
            for answer, count in found.most_common():
                print(f"{count:9}  {answer}")
            status = 0
        except AssertionError as error:
            print(f"failed: {error}")
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        (number,) = struct.unpack_from("<L", begun)
        name = signal.Signals(os.WTERMSIG(ended)).name
        print(f"failed: run {number} of seed {asked.seed} ended in {name}")
        return 1
    status = os.waitstatus_to_exitcode(ended)
    if status == 0:
        print(f"{asked.runs} files in {time.perf_counter() - start:.0f} s: all refused or read")
    return status


if __name__ == "__main__":
    sys.exit(main())
