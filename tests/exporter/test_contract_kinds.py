"""Every kind of assumption, end to end: calls inside the contract give eager's numbers, calls outside
raise the guard error that names the argument. Small rebuilds of public bug reports, most of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tcexport

Args = tuple[Any, ...]


@dataclass
class Kind:
    """``rejects`` are calls with the place that the error must name: ``x axis 0`` or ``x``."""

    name: str
    module: nn.Module
    example: Args
    axes: dict[str, tuple[str | None, ...]]
    ranges: dict[str, tuple[int, ...]]
    accepts: list[Args] = field(default_factory=list)
    rejects: list[tuple[Args, str]] = field(default_factory=list)
    refused: str = ""  # what the refusal of the plain export says; the calls are for --narrow then


class Hundred(nn.Module):
    def forward(self, x):
        return x.reshape(100, -1) * 2


class Branch(nn.Module):
    def forward(self, x):
        return x.sin() if x.shape[0] > 5 else x.cos()


class Head(nn.Module):
    def forward(self, i, y):
        n = int(i.item())
        torch._check(n >= 0)
        torch._check(n < len(y))
        return y[:n]


class Apart(nn.Module):
    def forward(self, x, y):
        return x + 1, y.sum()


class Slice(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(512, 8))

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(512, 8)

    def forward(self, x):
        return x + self.table(torch.arange(x.shape[1]))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(512, 8)

    def forward(self, ids):
        return self.table(ids)


class TwoTables(nn.Module):
    """Two columns of one input that index tables of different sizes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(10, 4), nn.Embedding(100, 4)

    def forward(self, ids):
        return self.first(ids[:, 0]) + self.second(ids[:, 1])


class Halves(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], x.shape[1] // 2, 2).sum(-1)


class AddOne(nn.Module):
    def forward(self, x):
        return x + 1


class Weighted(nn.Module):
    def forward(self, x):
        return (x * torch.arange(12.0).reshape(3, 4)).sum(-1)


class Add(nn.Module):
    def forward(self, x, y):
        return x + y


class Scaled(nn.Module):
    def forward(self, x, k: int):
        return x * k


class Maybe(nn.Module):
    def forward(self, x, n=None):
        return x * 2 if n is None else x * 2 + n


class Mixed(nn.Module):
    def forward(self, x, y):
        return x * 2 + y


class Nested(nn.Module):
    """Nested arguments, and nested results with None, an int and the same tensor twice."""

    def forward(self, batch, flag: bool = True):
        x, (y,) = batch["x"], batch["rest"]
        total = x + y if flag else x - y
        return {"total": total, "pair": (total, None), "rows": x.shape[0], "half": x.shape[0] // 2}


class TokensAndSteps(nn.Module):
    def forward(self, x):
        return x.relu()


def rows(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def _batch(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {"x": x, "rest": [y]}


SAME = torch.ones(3)
KINDS = [
    Kind(
        "divisibility", Hundred(), (rows(200),), {"x": ("n",)}, {"n": (1, 4096)},
        accepts=[(rows(300),), (rows(4000),), (rows(100),)],
        rejects=[((rows(2099),), "x axis 0"), ((rows(50),), "x axis 0"), ((rows(0),), "x axis 0")],
        refused="--dynamic n=100..4000:100",
    ),
    Kind(
        "branch on a size", Branch(), (rows(6, 2),), {"x": ("n", None)}, {"n": (1, 64)},
        accepts=[(rows(6, 2),), (rows(64, 2),)],
        rejects=[((rows(4, 2),), "x axis 0"), ((rows(65, 2),), "x axis 0")],
        refused="--dynamic n=6..64",
    ),
    Kind(
        "bound by the value of an input", Head(), (torch.tensor(4), rows(10)), {"y": ("n",)},
        {"n": (1, 64)},
        accepts=[(torch.tensor(2), rows(5)), (torch.tensor(0), rows(5))],
        rejects=[((torch.tensor(4), rows(3)), "i"), ((torch.tensor(-1), rows(8)), "i")],
    ),
    Kind(
        "derived axes without their root", Apart(), (rows(10), rows(6)),
        {"x": ("2*n",), "y": ("n+1",)}, {"n": (2, 50)},
        accepts=[(rows(8), rows(5)), (rows(100), rows(51))],
        rejects=[((rows(9), rows(5)), "x axis 0"), ((rows(8), rows(6)), "y axis 0"),
                 ((rows(102), rows(52)), "x axis 0")],
    ),
    Kind(
        "table that ends, by a slice", Slice(), (rows(3, 10, 8),), {"x": ("b", "seq", None)},
        {"b": (1, 64), "seq": (1, 512)},
        accepts=[(rows(1, 1, 8),), (rows(2, 512, 8),)],
        rejects=[((rows(3, 600, 8),), "x axis 1"), ((rows(3, 5, 7),), "x axis 2")],
    ),
    Kind(
        "table that ends, by a lookup", Lookup(), (rows(3, 10, 8),), {"x": ("b", "seq", None)},
        {"b": (1, 64), "seq": (1, 4096)},
        accepts=[(rows(2, 512, 8),), (rows(1, 1, 8),)],
        rejects=[((rows(3, 600, 8),), "x axis 1")],
        refused="--dynamic b=1..64,seq=1..512",
    ),
    Kind(
        "values used as indices", Tokens(), (torch.tensor([[1, 2, 3], [4, 5, 6]]),),
        {"ids": ("b", "seq")}, {"b": (1, 64), "seq": (1, 512)},
        accepts=[(torch.tensor([[0, 511]]),)],
        rejects=[((torch.tensor([[1, 515]]),), "ids"), ((torch.tensor([[1, 10**9]]),), "ids"),
                 ((torch.tensor([[1, -1]]),), "ids")],
    ),
    Kind(
        "parts of an input used as indices", TwoTables(), (torch.tensor([[1, 2], [3, 40]]),),
        {"ids": ("b", None)}, {"b": (1, 64)},
        accepts=[(torch.tensor([[9, 99]]),)],
        rejects=[((torch.tensor([[10, 99]]),), "ids"), ((torch.tensor([[9, 100]]),), "ids")],
    ),
    Kind(
        "halves", Halves(), (rows(3, 10),), {"x": ("b", "seq")}, {"b": (1, 64), "seq": (4, 512)},
        accepts=[(rows(3, 12),), (rows(1, 4),)],
        rejects=[((rows(3, 11),), "x axis 1")],
        refused="--dynamic b=1..64,seq=4..512:2",
    ),
    Kind(
        "both ends of a range, in steps", TokensAndSteps(), (rows(3, 8),), {"x": ("b", "w")},
        {"b": (2, 4), "w": (4, 16, 4)},
        accepts=[(rows(2, 4),), (rows(4, 16),)],
        rejects=[((rows(1, 4),), "x axis 0"), ((rows(5, 4),), "x axis 0"),
                 ((rows(2, 6),), "x axis 1"), ((rows(4, 20),), "x axis 1"),
                 ((rows(8, 4),), "x axis 0")],
    ),
    Kind(
        "rank and dtype", AddOne(), (rows(5),), {"x": ("n",)}, {"n": (1, 64)},
        accepts=[(rows(1),), (rows(64),)],
        rejects=[((rows(3, 4),), "x"), ((rows(5).double(),), "x"), ((torch.arange(5),), "x"),
                 ((torch.tensor(1.0),), "x"), (([1.0],), "x"), ((None,), "x")],
    ),
    Kind(
        "strides", Weighted(), (rows(3, 4),), {"x": (None, None)}, {},
        accepts=[(rows(4, 3).t(),), (rows(3, 8)[:, ::2],), (rows(3, 5)[:, 1:],),
                 (rows(3, 4).flip(0),)],
    ),
    Kind(
        "alignment", AddOne(), (rows(64),), {"x": ("n",)}, {"n": (1, 128)},
        accepts=[(rows(65)[1:],), (rows(9)[3:],)],
    ),
    Kind(
        "sizes equal by chance", Apart(), (rows(6), rows(6)), {"x": ("a",), "y": ("b",)},
        {"a": (1, 64), "b": (1, 64)}, accepts=[(rows(6), rows(9)), (rows(1), rows(64))],
    ),
    Kind(
        "equal axes", Add(), (rows(6), rows(6)), {"x": ("n",), "y": ("n",)}, {"n": (1, 64)},
        accepts=[(rows(6), rows(6)), (rows(1), rows(1))],
        rejects=[((rows(6), rows(5)), "y axis 0"), ((rows(6), rows(1)), "y axis 0")],
    ),
    Kind(
        "int", Scaled(), (rows(3, 4), 2), {"x": ("b", None)}, {"b": (1, 64)},
        accepts=[(rows(5, 4), 2)],
        rejects=[((rows(5, 4), 3), "k"), ((rows(5, 4), True), "k"), ((rows(5, 4), 2.0), "k")],
    ),
    Kind(
        "None", Maybe(), (rows(3, 4), None), {"x": ("b", None)}, {"b": (1, 64)},
        accepts=[(rows(5, 4), None), (rows(5, 4),)],
        rejects=[((rows(3, 4), torch.ones(3, 4)), "n")],
    ),
    Kind(
        "the same tensor twice as example", Mixed(), (SAME, SAME), {"x": ("n",), "y": ("n",)},
        {"n": (1, 64)}, accepts=[(torch.ones(3), torch.full((3,), 10.0))],
    ),
    Kind(
        "nested arguments and results", Nested(), (_batch(rows(3, 4), rows(3, 4)),),
        {"batch.x": ("b", None), "batch.rest[0]": ("b", None)}, {"b": (1, 8)},
        accepts=[(_batch(rows(5, 4), rows(5, 4)),), (_batch(rows(1, 4), rows(1, 4)), True)],
        rejects=[
            ((_batch(rows(9, 4), rows(9, 4)),), "batch.x axis 0"),
            ((_batch(rows(5, 4), rows(4, 4)),), "batch.rest[0] axis 0"),
            (({"x": rows(5, 4)},), "batch"),
            (({"x": rows(5, 4), "rest": (rows(5, 4),)},), "batch.rest"),
            ((_batch(rows(5, 4), rows(5, 4)), False), "flag"),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_inside_is_eager_and_outside_is_refused(
    kind: Kind, export_once: Callable[..., Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"axes": kind.axes, "dynamic": kind.ranges}
    if kind.refused:
        with pytest.raises(tcexport.ExportError) as refusal:
            tcexport.export(kind.module.eval(), kind.example, out=tmp_path / "x.tcpkg", **options)
        assert refusal.value.code == "TC210"
        assert f"{kind.refused}   (tried, works)" in str(refusal.value)
        assert Path(__file__).name in str(refusal.value)
        assert not list(tmp_path.iterdir())
        options["narrow"] = True
    model = tcexport.load(export_once(kind.name, kind.module, kind.example, **options))
    for call in [kind.example, *kind.accepts]:
        with torch.no_grad():
            want = kind.module(*call)
        _assert_same(model(*call), want)
    for call, place in kind.rejects:
        with pytest.raises(tcexport.GuardError) as error:
            model(*call)
        argument, _, axis = place.partition(" axis ")
        assert error.value.argument == argument
        assert error.value.axis == (int(axis) if axis else None)
        assert place in str(error.value)


def _assert_same(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            _assert_same(got[key], want[key])
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            _assert_same(one, other)
    else:
        assert type(got) is type(want) and got == want


class Keywords(nn.Module):
    def forward(self, x, a, b):
        return x + 10 * a + 100 * b


def test_the_order_of_keywords_means_nothing(tmp_path: Path) -> None:
    one, two, three = (torch.full((2,), float(n)) for n in (1, 2, 3))
    report = tcexport.export(
        Keywords().eval(), (one,), {"b": three, "a": two},
        axes={"x": ("n",), "a": ("n",), "b": ("n",)}, dynamic={"n": (1, 64)},
        out=tmp_path / "keywords.tcpkg", targets=("cpu:x86-64-v3",),
    )  # fmt: skip
    model = tcexport.load(report.path)
    for answer in (
        model(one, two, three),
        model(b=three, x=one, a=two),
        model(one, b=three, a=two),
    ):
        assert answer.tolist() == [321.0, 321.0]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(1))

    def forward(self, x):
        self.count = self.count + 1
        return x + self.count


class Overwrites(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.poisson(x.abs())


@pytest.mark.parametrize(
    "module, code, line",
    [
        (Counter(), "TC103", "self.count = self.count + 1"),
        (Overwrites(), "TC104", "x.add_(1)"),
        (Noise(), "TC105", "return x + torch.poisson(x.abs())"),
    ],
)
def test_what_a_bundle_would_lose_is_refused_with_the_line(
    module: nn.Module, code: str, line: str, tmp_path: Path
) -> None:
    count = getattr(module, "count", torch.ones(1)).clone()
    with pytest.raises(tcexport.ExportError) as refusal:
        tcexport.export(
            module.eval(), (rows(4),), axes={"x": ("n",)}, dynamic={"n": (1, 64)},
            out=tmp_path / "x.tcpkg",
        )  # fmt: skip
    assert refusal.value.code == code
    assert line in str(refusal.value)
    assert getattr(module, "count", torch.ones(1)) == count, "the user's buffer was changed"
    assert not list(tmp_path.iterdir())


def test_dims_that_must_be_equal_are_named_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(tcexport.ExportError) as refusal:
        tcexport.export(
            Add().eval(), (rows(6), rows(6)), axes={"x": ("a",), "y": ("b",)},
            dynamic={"a": (2, 64), "b": (2, 64)}, out=tmp_path / "x.tcpkg",
        )  # fmt: skip
    assert refusal.value.code == "TC202"
    assert "a and b must be equal" in str(refusal.value)
    assert "return x + y" in str(refusal.value)


def test_an_example_of_size_one_does_not_fix_a_dim(export_once: Callable[..., Path]) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    options: dict[str, Any] = {"axes": {"input": ("batch", None)}, "dynamic": {"batch": (1, 16)}}
    model = tcexport.load(export_once("one", module, (rows(1, 4),), **options))
    for batch in (1, 2, 16):
        with torch.no_grad():
            torch.testing.assert_close(model(rows(batch, 4)), module(rows(batch, 4)))


def test_a_bare_dim_gets_the_widest_range_and_says_what_limits_it(tmp_path: Path) -> None:
    from tcexport.exporter.export import check
    from tcexport.exporter.source import source_in_memory

    source = source_in_memory(Slice().eval(), (rows(3, 10, 8),), {}, {"x": ("b", "seq", None)})
    dims = {dim.name: dim for dim in check(source, dynamic={"seq": None, "b": None}).dims}
    assert (dims["seq"].lo, dims["seq"].hi) == (1, 512)
    assert dims["seq"].hi_from.location is not None
    assert "self.table[: x.shape[1]]" in dims["seq"].hi_from.location.text
    assert (dims["b"].lo, dims["b"].hi) == (1, None)


class Largest(nn.Module):
    def forward(self, x):
        return x.max(1), {"sorted": x.sort(dim=1, stable=True)}


def test_what_an_op_gives_by_name_comes_back_by_name(export_once: Callable[..., Path]) -> None:
    options: dict[str, Any] = {"axes": {"x": ("b", "n")}, "dynamic": {"b": (1, 9), "n": (1, 9)}}
    model = tcexport.load(export_once("names", Largest().eval(), (rows(3, 5),), **options))
    largest, rest = model(rows(2, 4))
    want, wanted = Largest()(rows(2, 4))
    assert torch.equal(largest.values, want.values) and torch.equal(largest.indices, want.indices)
    assert torch.equal(rest["sorted"].indices, wanted["sorted"].indices)
