"""Small models with calls that lie outside of what was exported; see `peers_contract`.

Most are rebuilds of public bug reports against torch.export, AOTInductor, ExecuTorch and ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Args = tuple[Any, ...]
Names = tuple["str | None", ...]


@dataclass(frozen=True)
class Case:
    """``axes``: the names of each argument's axes, None for an argument that is no tensor."""

    name: str
    make: Callable[[], nn.Module]
    example: Args
    axes: tuple[Names | None, ...]
    ranges: dict[str, tuple[int, int]]
    calls: tuple[Args, ...]


class Applied(nn.Module):
    """A function of one or two tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class AppliedToTwo(Applied):
    def forward(self, x: Any, y: Any) -> Any:  # type: ignore[override]
        return self.function(x, y)


class Sliced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(512, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table: Any = self.table
        return x + table[: x.shape[1]]


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(512, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.table(torch.arange(x.shape[1]))


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        return x * k


class Maybe(nn.Module):
    def forward(self, x: torch.Tensor, n: Any = None) -> torch.Tensor:
        return x * 2 if n is None else x * 2 + n


class Taken(nn.Module):
    def forward(self, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n: Any = i.item()  # no int(): torch would ask for the number itself
        torch._check(n >= 0)
        torch._check(n <= y.shape[0])
        return y[:n] * 2


def one(function: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    return lambda: Applied(function)


def two(function: Callable[[Any, Any], Any]) -> Callable[[], nn.Module]:
    return lambda: AppliedToTwo(function)


def rows(*shape: int) -> torch.Tensor:
    return torch.ones(shape).cumsum(-1) / 8


def ids(*values: int) -> torch.Tensor:
    return torch.tensor([values])


LONG = (1, 4096)

CASES = (
    Case("reshape to 100 rows", one(lambda x: x.reshape(100, -1) * 2), (rows(200),), (("n",),),
         {"n": LONG}, ((rows(2099),), (rows(50),))),
    Case("branch on a size", one(lambda x: x.sin() if x.shape[0] > 5 else x.cos()), (rows(6, 2),),
         (("n", None),), {"n": (1, 64)}, ((rows(4, 2),),)),
    Case("slice of a table", Sliced, (rows(3, 10, 8),), (("b", "s", None),),
         {"b": (1, 64), "s": LONG}, ((rows(3, 600, 8),),)),
    Case("lookup in a table", Looked, (rows(3, 10, 8),), (("b", "s", None),),
         {"b": (1, 64), "s": LONG}, ((rows(3, 600, 8),),)),
    Case("token ids", lambda: nn.Embedding(512, 8), (ids(1, 2, 3),), (("b", "s"),),
         {"b": (1, 64), "s": LONG}, ((ids(1, 515),), (ids(1, -1),), (ids(1, 10**9),))),
    Case("halves", one(lambda x: x.view(x.shape[0], x.shape[1] // 2, 2).sum(-1)), (rows(3, 10),),
         (("b", "s"),), {"b": (1, 64), "s": LONG}, ((rows(3, 11),),)),
    Case("ranges", one(lambda x: x.relu()), (rows(3, 8),), (("b", "w"),),
         {"b": (2, 4), "w": (4, 16)}, ((rows(1, 4),), (rows(5, 4),), (rows(4, 20),), (rows(8, 4),))),
    Case("rank and dtype", one(lambda x: x + 1), (rows(5),), (("n",),), {"n": LONG},
         ((rows(3, 4),), (rows(5).double(),), (torch.arange(5),), (torch.tensor(1.0),))),
    Case("equal axes", two(lambda x, y: x + y), (rows(6), rows(6)), (("n",), ("n",)), {"n": LONG},
         ((rows(6), rows(5)), (rows(6), rows(9)))),
    Case("derived axes", two(lambda x, y: x[::2] + y[1:]), (rows(10), rows(6)), (("2*n",), ("n+1",)),
         {"n": (2, 50)}, ((rows(8), rows(6)), (rows(12), rows(6)))),
    Case("an int", Scaled, (rows(3, 4), 2), (("b", None), None), {"b": (1, 64)},
         ((rows(5, 4), 3), (rows(5, 4), True))),
    Case("None", Maybe, (rows(3, 4), None), (("b", None), None), {"b": (1, 64)},
         ((rows(3, 4), torch.ones(3, 4)),)),
    Case("bound by a value", Taken, (torch.tensor(4), rows(10)), ((), ("n",)), {"n": (1, 64)},
         ((torch.tensor(4), rows(3)), (torch.tensor(-1), rows(8)))),
    Case("gather", two(lambda x, i: torch.gather(x, 1, i)), (rows(1, 9), ids(0, 3)),
         ((None, "n"), (None, "m")), {"n": LONG, "m": LONG}, ((rows(1, 4), ids(0, 4)),)),
    Case("one hot", one(lambda i: nn.functional.one_hot(i, 7)), (ids(0, 6),), ((None, "n"),),
         {"n": LONG}, ((ids(0, 7),), (ids(-1, 2),))),
    Case("maximum of nothing", one(lambda x: x.amax(1)), (rows(3, 4),), (("b", "n"),),
         {"b": (1, 64), "n": (0, 64)}, ((rows(3, 0),),)),
    Case("squeeze", one(lambda x: x.squeeze(1) + 1), (rows(3, 4),), (("b", "n"),),
         {"b": (1, 64), "n": (1, 64)}, ((rows(3, 1),),)),
    Case("one over a size", one(lambda x: x.sum() * (1 / x.shape[0])), (rows(4),), (("n",),),
         {"n": (0, 64)}, ((rows(0),),)),
)  # fmt: skip
