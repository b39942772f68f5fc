"""What `lower` and the compiler's process say to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..artifacts.errors import Diagnostic
from ..artifacts.manifest import Parameters
from ..artifacts.states import StateTensor
from .asserted import Asserted
from .own_ops import OwnKernel
from .survey import OpUse
from .targets import target_named
from .variants import ENTRY


class Function(msgspec.Struct, frozen=True):
    """A function of the library: of ``program`` (a place in the request), with ``sizes`` of torch's
    symbols, by name, as numbers. A program's own, without any, comes before those with."""

    name: str = ENTRY
    program: int = 0
    sizes: dict[str, int] = {}


class Request(msgspec.Struct, frozen=True):
    """What is to be lowered, and where the files go; or ``only_survey``: which ops could be.
    ``own``: kernels for ops that are not torch's."""

    programs: tuple[str, ...]
    targets: tuple[str, ...]
    workdir: str
    functions: tuple[Function, ...] = (Function(),)
    only_survey: bool = False
    own: tuple[OwnKernel, ...] = ()


class Called(msgspec.Struct, frozen=True):
    """How a compiled function is called, and what its contract must hold.

    Its arguments are: the tensors among the flat user inputs at the indices ``inputs``; then, if
    there are ``sizes``, one shape with the values of these torch symbols; then the ``states``, which
    it changes; then the tensors ``weights`` of the weights file. It returns ``results`` tensors, the
    tensors among the graph's outputs in their order, in an array, or one by itself. The function
    ``into``, if any, does the same, and takes memory for the results numbered ``given`` before the
    weights. ``indexing`` names the nodes whose kernels read or write at positions that are data, and
    ``asserted`` is what kernels assert of their data: the contract must hold both. ``memory`` are sums
    of bytes over torch's symbols, of which a call allocates the largest at once, or None where that is
    not known.
    """

    name: str
    inputs: tuple[int, ...]
    sizes: tuple[str, ...]
    states: tuple[str, ...]
    weights: tuple[str, ...]
    results: int
    indexing: tuple[str, ...]
    asserted: tuple[Asserted, ...]
    into: str = ""
    given: tuple[int, ...] = ()
    memory: tuple[Any, ...] | None = None


class OnGpu(msgspec.Struct, frozen=True):
    """How the functions for a GPU are called, and what their library holds: machine code and PTX by
    architecture, and kernels by name."""

    target: str
    functions: tuple[Called, ...]
    images: tuple[str, ...]
    kernels: tuple[str, ...]


class Made(msgspec.Struct, frozen=True):
    """What is known of the binaries of a program.

    ``functions`` are all functions of each library, ``main`` first. ``libc`` is the oldest C library
    that the library of each target runs with, see `link.oldest_system`. ``parameters`` is how the
    weights were made of the state of the model, where it is known. ``gpu`` is how the functions for a
    GPU are called, and what their library holds.
    """

    functions: tuple[Called, ...]
    linker: str
    libc: dict[str, str]
    ops: tuple[OpUse, ...]
    states: tuple[StateTensor, ...] = ()
    parameters: Parameters | None = None
    gpu: OnGpu | None = None

    @property
    def main(self) -> Called:
        return self.functions[0]


class Looked(msgspec.Struct, frozen=True):
    """What is known of a function before it is compiled: see `Called`."""

    indexing: tuple[str, ...]
    asserted: tuple[Asserted, ...]


class Surveyed(msgspec.Struct, frozen=True):
    """Which ops of a program can be lowered, why others cannot (TC501), and what is known of each
    function."""

    ops: tuple[OpUse, ...]
    errors: tuple[Diagnostic, ...]
    functions: tuple[Looked, ...]


class Answer(msgspec.Struct, frozen=True):
    """What was asked for, or why it is not there."""

    made: Made | None = None
    surveyed: Surveyed | None = None
    errors: tuple[Diagnostic, ...] = ()


def answer_path(workdir: Path) -> Path:
    return workdir / "answer.json"


def weights_path(workdir: Path) -> Path:
    return workdir / "weights.safetensors"


def library_path(workdir: Path, target: str) -> Path:
    named = target_named(target)
    return workdir / named.folder / named.library
