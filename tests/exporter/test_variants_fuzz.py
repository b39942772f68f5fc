"""No call is served by a variant whose guards it violates: variants, arms, ranges and calls are drawn.

The plans are real, of real traces, and so is the choice among them; their code is not
needed to know whom a call goes to. A few are compiled, too (marked `zoo`), and compared with eager.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import tcexport
from tcexport.artifacts.contract import Contract, checked
from tcexport.artifacts.errors import ExportError, GuardError
from tcexport.artifacts.expr import ExprError, evaluate
from tcexport.artifacts.prove import Span
from tcexport.exporter.options import DimRequest
from tcexport.exporter.outline import Outline, outlined
from tcexport.exporter.profiles import Profile, Variants
from tcexport.exporter.source import source_in_memory
from tcexport.exporter.stages import Stages
from tcexport.exporter.variants import Plan, plan
from tcexport.runtime.guards import Part, compile_dispatch

AXES = {"x": ("b", "s"), "y": ("b", "2*s")}
EXAMPLE = (torch.randn(2, 12), torch.randn(2, 24))


class Arms(nn.Module):
    """Three arms on one size, a table that ends, and an axis that is derived."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(40))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        s = x.shape[1]
        if s == 1:
            return x + y[:, :1]
        if s > 8:
            return (x * self.table[:s]).cumsum(1)[:, -1:] / s
        return x[:, :1] - y.sum(1, keepdim=True) * x.shape[0]


class Rows(nn.Module):
    """A guard over two dims: only sizes whose product can be put in rows of six."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 6).sum(0) + y.sum()


def outline_of(module: nn.Module, cover: bool) -> Outline:
    source = source_in_memory(module.eval(), EXAMPLE, {}, AXES)
    s = None if cover else DimRequest(1, 36)
    dynamic = {"b": DimRequest(1, 8), **({} if s is None else {"s": s})}
    asked = Variants(cover=("s", DimRequest(1, 36)) if cover else None)
    return outlined(source, dynamic, (), True, asked, Stages(None))


@pytest.fixture(scope="module")
def outlines() -> tuple[Outline, ...]:
    return outline_of(Arms(), True), outline_of(Rows(), False)


def spans(least: int, most: int) -> st.SearchStrategy[Span]:
    def made(lo: int, count: int, step: int) -> Span:
        hi = min(most, lo + count * step)
        return Span(lo, hi - (hi - lo) % step, step)

    return st.builds(made, st.integers(least, most), st.integers(0, 8), st.integers(1, 4))


SIZES = st.fixed_dictionaries({}, optional={"b": spans(1, 9), "s": spans(1, 38)})
PROFILES = st.lists(SIZES.filter(bool), max_size=6, unique_by=repr)


def planned(outline: Outline, drawn: Iterable[dict[str, Span]]) -> Plan:
    """The plan with those of the drawn variants that it takes: what is not served is refused."""
    kept: list[Profile] = []
    for number, sizes in enumerate(drawn):
        profile = Profile(f"p{number}", sizes)
        try:
            plan(outline.plan.arms, [profile], 1 << 10)
        except ExportError as error:
            assert error.code == "TC220"
            continue
        kept.append(profile)
    return plan(outline.plan.arms, kept, 1 << 10)


def met(contract: Contract, sizes: dict[str, int]) -> bool:
    """Whether sizes lie in the ranges of a contract and meet its guards, told without the runtime."""
    for dim in contract.dims:
        if sizes[dim.name] not in Span(dim.lo, dim.hi, dim.step):
            return False
    try:
        return all(bool(evaluate(guard.expr, sizes)) for guard in contract.guards)
    except ExprError:
        return False


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    which=st.integers(0, 1),
    profiles=PROFILES,
    calls=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 40)), min_size=4, max_size=12),
)
def test_a_call_goes_to_the_first_variant_that_it_meets_and_to_no_other(
    outlines: tuple[Outline, ...], data: Any, which: int, profiles: list, calls: list
) -> None:
    outline = outlines[which]
    found = planned(outline, profiles)
    arms = found.arms
    whole = checked(outline.whole or arms[0].derived.contract)
    check = compile_dispatch(whole, [Part(each.contract, ()) for each in found.variants]).numpy
    for variant in found.variants:  # where they begin and end, more calls than by chance
        for dim in variant.contract.dims:
            edge = data.draw(st.sampled_from([dim.lo, dim.hi or dim.lo, dim.lo + dim.step]))
            calls.append((edge, calls[0][1]) if dim.name == "b" else (calls[0][0], edge))
    for b, s in calls:
        sizes = {"b": b, "s": s}
        x, y = np.zeros((b, s), np.float32), np.zeros((b, 2 * s), np.float32)
        answer = check([x, y])
        takers = [n for n, each in enumerate(found.variants) if met(each.contract, sizes)]
        want = takers[0] if takers and met(whole, sizes) else None
        assert answer == (None if want is None else (want,)), sizes
        if want is None:
            continue
        taken = found.variants[want]
        arm = arms[taken.arm].derived
        assert met(arm.contract, sizes), "a variant lies within the trace that it is made from"
        assert all(sizes[name] in span for name, span in taken.spans.items())
        for symbol, number in taken.sizes.items():
            assert evaluate(arm.symbols[symbol], sizes) == number
    # Whatever the bundle serves as a whole has code: the general one, or an arm.
    general = [each for each in found.variants if not each.sizes]
    for b, s in calls:
        if met(whole, {"b": b, "s": s}):
            assert any(met(each.contract, {"b": b, "s": s}) for each in general)


@pytest.mark.zoo
@settings(max_examples=6, deadline=None)
@given(
    which=st.sampled_from([(Arms, True), (Rows, False)]),
    profiles=PROFILES.filter(bool),
    calls=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 38)), min_size=30, max_size=60),
)
def test_what_serves_a_call_gives_eagers_numbers(which: Any, profiles: list, calls: list) -> None:
    module, cover = which[0]().eval(), which[1]
    found = planned(outline_of(module, cover), profiles)
    made = {each.name: dict(each.spans) for each in found.made}
    assume(made)
    ranges = {"cover": {"s": (1, 36)}} if cover else {}
    with TemporaryDirectory() as folder:
        report = tcexport.export(
            module,
            EXAMPLE,
            axes=AXES,
            dynamic={"b": (1, 8), **({} if cover else {"s": (1, 36)})},
            profiles={
                name: {dim: (span.lo, span.hi, span.step) for dim, span in sizes.items()}
                for name, sizes in made.items()
            },
            out=Path(folder) / "m.tcpkg",
            targets=("cpu:x86-64-v3",),
            narrow=True,
            keep_variants=True,
            **ranges,
        )
        model = tcexport.load(report.path)
        names = [each.name for each in found.variants]
        assert list(report.variants) == names
        edges = [
            (sizes.get("b", Span(2, 2)).lo, sizes.get("s", Span(12, 12)).lo)
            for sizes in made.values()
        ]
        for b, s in (*edges, *calls):
            x, y = torch.randn(b, s), torch.randn(b, 2 * s)
            before = dict(model.metrics.variants)
            try:
                got = model(x.numpy(), y.numpy())
            except GuardError:
                assert model.metrics.variants == before
                continue
            taken = [name for name, n in model.metrics.variants.items() if n > before[name]]
            first = next(v.name for v in found.variants if met(v.contract, {"b": b, "s": s}))
            assert taken == [first]
            with torch.no_grad():
                want = module(x, y)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
