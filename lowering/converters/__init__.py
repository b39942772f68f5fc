"""Converters: one file for each family of ops, all entered in `registry.CONVERTERS`."""

from . import (  # noqa: F401
    attention,
    check,
    complex,
    convolution,
    creation,
    elementwise,
    fft,
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
