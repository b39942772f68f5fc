"""What each ONNX operator means in torch, by family. Importing this fills the registry."""

from __future__ import annotations

from . import (
    arithmetic,
    attention,
    comparison,
    convolution,
    creation,
    indexing,
    linear,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resizing,
    scatter,
    shaping,
    unary,
)

__all__ = [
    "arithmetic",
    "attention",
    "comparison",
    "convolution",
    "creation",
    "indexing",
    "linear",
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "reduction",
    "resizing",
    "scatter",
    "shaping",
    "unary",
]
