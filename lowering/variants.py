"""Several functions in one library: of one program with sizes that are numbers, or of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import sympy
import torch
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

ENTRY = "main"  # of a library with one function


@dataclass(frozen=True)
class Variant:
    """One function of a library.

    Attributes:
        function: its name in the library.
        sizes: the torch symbols that are numbers in it, by name.
        folded: the nodes that the program's own function, without ``sizes``, computes at export.
    """

    function: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    folded: frozenset[str] = frozenset()

    def named(self, name: str) -> str:
        """A name that no function of another variant has."""
        return name if self.function == ENTRY else f"{self.function}_{name}"

    def folds(self, node: str) -> bool:
        """Whether the function without ``sizes`` computes this node at export, too."""
        return not self.sizes or node in self.folded


GENERAL = Variant(ENTRY)


@contextmanager
def with_sizes(program: torch.export.ExportedProgram, sizes: Mapping[str, int]) -> Iterator[None]:
    """While active, some symbols of a program are numbers wherever it speaks of sizes.

    Torch's own way to specialize: a replacement in the shape environment, which every `SymInt` of
    the program's metadata goes through.
    """
    if not sizes:
        yield
        return
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    mode = detect_fake_mode([value for value in values if isinstance(value, torch.Tensor)])
    assert mode is not None and mode.shape_env is not None, "sizes of a program without tensors"
    env = mode.shape_env
    by_name = {symbol.name: symbol for symbol in env.var_to_range if symbol.name in sizes}
    assert by_name.keys() == sizes.keys(), "symbols that the program does not have"
    before = dict(env.replacements)
    env.replacements.update({by_name[name]: sympy.Integer(size) for name, size in sizes.items()})
    _forget(env)
    try:
        yield
    finally:
        env.replacements.clear()
        env.replacements.update(before)
        _forget(env)


def _forget(env: ShapeEnv) -> None:
    """Expressions that were simplified before are out of date, and so is what symbols stand for."""
    env._replacements_version_counter += 1
    env._update_version_counter()
