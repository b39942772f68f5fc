"""ONNX Runtime as the second opinion on what a graph gives."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..breaks import first_line
from ..reference import NoAnswer


class OnnxRuntime:
    """One session on a file, as the specification says: nothing is optimized, nothing fused.

    Args:
        path: the file, which is loaded at the first call.
        inputs, outputs: their names in the file, in order.
    """

    name = "ONNX Runtime"

    def __init__(self, path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._path = path
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._session: Any = None

    def __call__(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for tensors in the order of the inputs.

        Raises:
            NoAnswer: with the reason.
        """
        session = self._opened()
        try:
            values = {
                name: leaf.detach().contiguous().numpy()
                for name, leaf in zip(self._inputs, leaves, strict=True)
            }
            found = session.run(list(self._outputs), values)
        except Exception as error:  # whatever its kernels raise, and numpy of bfloat16
            raise NoAnswer(first_line(error)) from error
        return [torch.from_numpy(each.copy()) for each in found]

    def _opened(self) -> Any:
        if self._session is not None:
            return self._session
        if importlib.util.find_spec("onnxruntime") is None:
            raise NoAnswer("onnxruntime is not installed")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                str(self._path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # a type or an operator that it has no kernel for
            raise NoAnswer(first_line(error)) from error
        return self._session
