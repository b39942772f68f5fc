"""Models that draw random numbers: seeded, reproducible, and compared with eager beyond the draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tcexport
from tcexport.exporter.drawing import SEED, Drawing

AXES: dict[str, Any] = {"axes": {"x": ("n", None)}, "dynamic": {"n": (1, 9)}}


class Draws(nn.Module):
    """Most of what a model draws, and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        noisy = self.layer(x + 0.1 * torch.randn_like(x)).relu()
        kept = F.dropout(noisy, 0.25)
        chances = noisy.softmax(-1)
        return {
            "kept": kept,
            "two": torch.rand(x.shape[0]) - torch.rand(x.shape[0]),
            "picked": torch.multinomial(chances, 1),
            "several": torch.multinomial(chances, 4, replacement=True),
            "first": torch.multinomial(chances, 3),
            "coin": torch.bernoulli(chances),
            "dice": torch.randint(1, 7, (x.shape[0], 2)),
            "order": torch.randperm(x.shape[0]),
            "gumbel": F.gumbel_softmax(noisy, hard=True),
            "wide": torch.normal(x.double(), 2.0),
            "half": torch.rand(3, dtype=torch.float16),
        }


class Filled(nn.Module):
    """What a model draws into memory that it has, and draws that are like another tensor."""

    def forward(self, x: torch.Tensor) -> Any:
        rows = x.shape[0]
        return {
            "uniform": torch.empty_like(x).uniform_(-1, 2),
            "normal": torch.empty_like(x).normal_(1, 2),
            "log normal": torch.empty_like(x).log_normal_(0.5, 0.25),
            "exponential": torch.empty_like(x).exponential_(0.5),
            "cauchy": torch.empty_like(x).cauchy_(1, 2),
            "geometric": torch.empty_like(x).geometric_(0.3),
            "coin": torch.empty_like(x).bernoulli_(0.3),
            "coins": torch.empty_like(x).bernoulli_(x.sigmoid()),
            "dice": torch.randint(6, (rows,), dtype=torch.int32),
            "between": torch.randint_like(x, 2, 9),
            "like": torch.rand_like(x, dtype=torch.float64),
            "wide": torch.randn(rows, dtype=torch.float64),
        }


class Chances(nn.Module):
    """Draws whose parameters are data, which may be none."""

    def forward(self, weights: torch.Tensor, p: torch.Tensor, std: torch.Tensor) -> Any:
        return {
            "one": torch.multinomial(weights, 1),
            "several": torch.multinomial(weights, 5, replacement=True),
            "coin": torch.bernoulli(p),
            "normal": torch.normal(0.0, std),
        }


@pytest.fixture(scope="module")
def bundle(export_once: Callable[..., Path]) -> Path:
    torch.manual_seed(0)
    return export_once("draws", Draws(), (torch.randn(3, 6),), **AXES)


def answers(session: Any, x: np.ndarray, calls: int = 3) -> list[Any]:
    return [session(x) for _ in range(calls)]


def same(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a
    )


X = np.random.default_rng(0).standard_normal((5, 6)).astype("float32")


def test_equal_seeds_give_equal_bits_whatever_the_threads(bundle: Path) -> None:
    found = []
    for threads in (1, 2, 3):
        session = tcexport.load(bundle, num_threads=threads).session()
        session.seed(1234)
        found.append(answers(session, X))
    assert same(found[0], found[1]) and same(found[0], found[2])
    session.seed(1235)
    assert not same(found[0], answers(session, X))


def test_calls_and_draws_of_one_session_differ(bundle: Path) -> None:
    session = tcexport.load(bundle).session()
    session.seed(-5)
    first, second, _ = answers(session, X)
    assert not np.array_equal(first["two"], second["two"])
    assert np.abs(first["two"]).min() > 0  # of two draws with one number nothing would be left


def test_a_state_goes_on_where_it_was_kept(bundle: Path) -> None:
    model = tcexport.load(bundle)
    session = model.session()
    session.seed(7)
    session(X)
    kept = session.state()
    want = answers(session, X)
    other = model.session()
    other.restore(kept)
    assert same(answers(other, X), want)


def test_a_call_without_a_seed_is_refused(bundle: Path) -> None:
    model = tcexport.load(bundle)
    with pytest.raises(tcexport.UsageError, match=r"TC321.*draws random numbers"):
        model(X)
    session = model.session()
    with pytest.raises(tcexport.UsageError, match="TC325"):
        session(X)
    session.seed(1)
    session(X)
    session.reset()
    with pytest.raises(tcexport.UsageError, match="TC325"):
        session(X)


@pytest.mark.parametrize("seed", [1.0, True, 1 << 63, -(1 << 63) - 1, None])
def test_what_is_no_seed_is_refused(bundle: Path, seed: Any) -> None:
    with pytest.raises(tcexport.UsageError, match="TC008"):
        tcexport.load(bundle).session().seed(seed)


def test_the_manifest_names_the_generator(bundle: Path) -> None:
    manifest = tcexport.load(bundle).manifest
    (state,) = manifest.states
    assert (state.name, state.dtype, state.shape) == (manifest.generator, "int64", (2,))
    # It is none of the model's parameters, which may be exchanged.
    assert {each.name for each in manifest.parameters.sources} == {"layer.weight", "layer.bias"}


@pytest.mark.parametrize("kind", [Draws, Filled])
def test_all_that_comes_of_the_draws_is_eagers(
    export_once: Callable[..., Path], kind: type[nn.Module]
) -> None:
    """Eager mode, given the bundle's generator, computes the same of the same bits."""
    torch.manual_seed(0)
    model = kind().eval()
    path = export_once(kind.__name__.lower(), model, (torch.randn(3, 6),), **AXES)
    session = tcexport.load(path).session()
    session.seed(SEED)
    for call in range(1, 4):
        with torch.no_grad(), Drawing(call):
            want = model(torch.from_numpy(X))
        got = session(X)
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


GOOD = (torch.tensor([0.2, 0.0, 0.8]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))


@pytest.mark.parametrize(
    ("place", "values", "said"),
    [
        (0, [0.5, -0.1, 0.6], "no probability is negative, infinite or NaN"),
        (0, [0.5, math.inf, 0.6], "no probability is negative, infinite or NaN"),
        (0, [0.5, math.nan, 0.6], "no probability is negative, infinite or NaN"),
        (0, [0.0, 0.0, 0.0], "the probabilities of a row do not sum to 0"),
        (1, [0.5, 1.1], "every probability is between 0 and 1"),
        (1, [-0.5, 0.5], "every probability is between 0 and 1"),
        (2, [1.0, -1.0], "no standard deviation is negative"),
    ],
)
def test_data_of_which_eager_mode_draws_nothing_are_refused(
    export_once: Callable[..., Path], place: int, values: list[float], said: str
) -> None:
    session = tcexport.load(export_once("chances", Chances(), GOOD)).session()
    session.seed(1)
    session(*(each.numpy() for each in GOOD))
    bad = [torch.tensor(values) if at == place else each for at, each in enumerate(GOOD)]
    with pytest.raises(RuntimeError):
        Chances()(*bad)
    with pytest.raises(tcexport.GuardError, match=f"(?s)TC311.*{said}") as caught:
        session(*(each.numpy() for each in bad))
    assert "test_random.py" in str(caught.value)  # the line that draws


def test_an_export_says_which_lines_draw() -> None:
    found = tcexport.check(Draws().eval(), (torch.randn(3, 6),), **AXES)
    assert not found.errors
    lines = [each.location.text for each in found.notes if each.code == "TC123"]
    assert any("randn_like" in line for line in lines) and any("dropout" in line for line in lines)


class Refused(nn.Module):
    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.draw(x)


GENERATOR = torch.Generator()


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.poisson(x.abs()),
        lambda x: torch.rand(6, generator=GENERATOR),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0],
        lambda x: F.rrelu(x, training=True),
        lambda x: torch._standard_gamma(x.abs() + 1),
        lambda x: torch.binomial(x.abs().round(), torch.full_like(x, 0.5)),
        lambda x: torch.randn(6, dtype=torch.complex64).real,
        lambda x: x.clone().random_(6),
    ],
    ids=[
        "poisson", "a generator", "dropout of attention", "rrelu", "gamma", "binomial", "complex",
        "random_",
    ],
)  # fmt: skip
def test_other_draws_are_refused(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = tcexport.check(Refused(draw).eval(), (torch.randn(3, 6),), **AXES)
    assert {each.code for each in found.errors} == {"TC105"}


def test_a_model_that_draws_nothing_has_no_seed(export_once: Callable[..., Path]) -> None:
    path = export_once(
        "drawless", nn.Linear(6, 2), (torch.randn(3, 6),), axes={"input": ("n", None)}
    )
    with pytest.raises(tcexport.UsageError, match="draws no random numbers"):
        tcexport.load(path).session().seed(1)
