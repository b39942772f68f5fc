"""Converters: one file for each family of ops, all entered in `registry.CONVERTERS`."""

from . import (  # noqa: F401
    attention,
    check,
    convolution,
    creation,
    elementwise,
    index,
    linear,
    nonzero,
    norm,
    pooling,
    recurrent,
    reduce,
    resample,
    scan,
    scatter,
    search,
    shape,
    sort,
)
