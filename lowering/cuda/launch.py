"""A kernel that calls a function of ``device/``, as TIR: TVM writes its host code and its entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..kernels.prim_func import Expr, ceil_div, index, let

TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}


def instance(function: str, options: Sequence[Any]) -> str:
    """A function of ``device/`` with the options of its template, those in capitals being its own."""

    def text(option: Any) -> str:
        if isinstance(option, bool):
            return str(option).lower()
        known = isinstance(option, str) and option.isupper()
        return f"tcexport::{option}" if known else str(option)

    return f"tcexport::{function}<{', '.join(text(option) for option in options)}>"


def launch(
    name: str,
    pointers: Sequence[tirx.Buffer | None],
    numbers: Sequence[Expr],
    blocks: Expr,
    threads: int,
    shared_bytes: int,
) -> None:
    """A kernel of which each block calls a function of ``device/`` with its shared memory, the
    addresses of ``pointers`` (null for None) and ``numbers``."""
    with (
        T.thread_binding(index(0), let(blocks, "blocks"), "blockIdx.x"),
        T.thread_binding(index(0), index(threads), "threadIdx.x"),
        T.sblock("block"),
    ):
        T.reads()
        T.writes()
        shared = T.alloc_buffer((shared_bytes,), "uint8", scope="shared.dyn")
        addresses = [tirx.const(0, "int32") if p is None else p.data for p in pointers]
        T.evaluate(tirx.call_extern("void", name, shared.data, *addresses, *numbers))


THREADS = 256


@contextmanager
def a_thread_for_each(extents: Sequence[Expr]) -> Iterator[list[Expr]]:
    """A kernel with a thread for each point of ``extents``, neighbours along the last: its body is what
    is emitted within."""
    count = index(1)
    for extent in extents:
        count = count * index(extent)
    with (
        T.thread_binding(index(0), let(ceil_div(count, THREADS), "blocks"), "blockIdx.x") as block,
        T.thread_binding(index(0), index(THREADS), "threadIdx.x") as thread,
        T.sblock("block"),
    ):
        T.reads()
        T.writes()
        rest = let(block * index(THREADS) + thread, "at")
        with T.If(rest < count), T.Then():
            point: list[Expr] = []
            for extent in reversed(extents[1:]):
                point.insert(0, let(tirx.truncmod(rest, index(extent))))
                rest = let(tirx.truncdiv(rest, index(extent)))
            yield [rest, *point] if extents else []
