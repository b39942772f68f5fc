"""An ONNX file as a source: its module, the names of its axes, an example, and who checks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ...artifacts.errors import Diagnostic
from ..axes import Axes, dim_names
from ..options import DimRequest
from .example import example_call, is_name, named_axes
from .graph import Graph
from .program import Translated, module_of
from .read import read_onnx
from .reference import OnnxRuntime


@dataclass(frozen=True)
class Opened:
    """``sha256``: of the file and of its external data."""

    path: Path
    graph: Graph
    translated: Translated
    sha256: str

    @property
    def module(self) -> torch.nn.Module:
        return self.translated.module

    @property
    def reference(self) -> OnnxRuntime:
        names = [each.name for each in self.graph.inputs]
        return OnnxRuntime(self.path, names, self.graph.outputs)

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Which inputs have another name than in the file."""
        renamed = [
            f"{each.name} is {parameter}"
            for each, parameter in zip(self.graph.inputs, self.translated.parameters, strict=True)
            if each.name != parameter
        ]
        if not renamed:
            return ()
        message = f"inputs whose names are none of Python's: {', '.join(renamed)}"
        return (Diagnostic("TC134", message, severity="note"),)

    @property
    def dims(self) -> frozenset[str]:
        """The names that the file gives to axes."""
        dims = (dim for each in self.graph.inputs for dim in each.dims)
        named = [dim for dim in dims if isinstance(dim, str) and is_name(dim)]
        return frozenset(dim_names({"": tuple(named)}))

    def axes(self, named: Axes) -> Axes:
        """See `named_axes`."""
        return named_axes(self.graph, self.translated.parameters, named, self.path)

    def example(
        self,
        axes: Axes,
        given: Mapping[str, torch.Tensor],
        dynamic: Mapping[str, DimRequest | None],
    ) -> tuple[torch.Tensor, ...]:
        """See `example_call`."""
        return example_call(self.graph, self.translated, axes, given, self.path, dynamic)


def open_onnx(path: Path) -> Opened:
    """
    Raises:
        UsageError: TC011, TC131. ExportError: TC130.
    """
    graph, sha256 = read_onnx(path)
    return Opened(path, graph, module_of(graph, path, path.stem), sha256)
