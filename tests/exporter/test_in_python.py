"""Torch's expressions in messages: as Python writes them."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from torch.utils._sympy import functions as torchs

from tcexport.exporter.in_python import in_python

N, M = sympy.symbols("n m", positive=True, integer=True)
HALVED = torchs.FloorDiv(N - 1, 8) + 1


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (torchs.RoundToInt(torchs.IntTrueDiv(N, 4)), "round(n / 4)"),
        (torchs.CeilToInt(torchs.IntTrueDiv(HALVED, 2)), "ceil((((n - 1) // 8) + 1) / 2)"),
        (torchs.FloorDiv(N, torchs.FloorDiv(M, 2)), "n // (m // 2)"),
        (torchs.Mod(N + M, 3), "(m + n) % 3"),
        (torchs.TruncToInt(torchs.FloatPow(torchs.ToFloat(N), 0.5)), "int(pow(float(n), 0.5))"),
        (torchs.OpaqueUnaryFn_sqrt(N) * 2, "2*sqrt(n)"),
        (torchs.Max(N, M) - torchs.Min(N, 4), "max(m, n) - min(4, n)"),
        (sympy.Piecewise((1, sympy.Eq(N, 1)), (0, True)) <= 1, "(1 if n == 1 else 0) <= 1"),
        (sympy.And(N > 3, sympy.Or(M < 2, sympy.Ne(N, M))), "(n > 3 and (m < 2 or n != m))"),
        (sympy.Not(sympy.Or(N > 3, M > 4)), "not (m > 4 or n > 3)"),
        (N**2 * M - 3, "m*n**2 - 3"),
        (5, "5"),
    ],
)
def test_an_expression_is_written_as_python_writes_it(expression: Any, text: str) -> None:
    assert in_python(expression) == text
