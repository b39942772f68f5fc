"""Variants: what is asked for is built, and each call goes to the first that takes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tcexport
from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import ExportError, GuardError, UsageError
from tcexport.artifacts.logs import set_logs
from tcexport.artifacts.manifest import encode, routes
from tcexport.artifacts.prove import Span
from tcexport.exporter.profiles import Profile, parse_profiles, profiles_from_python
from tcexport.exporter.variants import intersection
from tcexport.lowering.cuda.toolchain import find_toolchain

LEVEL = "cpu:x86-64-v3"


def missing_toolchain() -> str | None:
    try:
        find_toolchain()
    except ExportError as error:
        return error.diagnostics[0].message
    return None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 8))
        self.mix = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
        seq = x.shape[1]
        y = self.mix(x + self.table[:seq]) + self.table[ids][:, None]
        return torch.relu(y).sum(1) / seq, seq * 2


VARIANTS = ["seq=1,batch=1", "seq=16,batch=1", "pairs", "odd", "general"]


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def bundle(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = tcexport.export(
        net,
        (torch.randn(2, 9, 8), torch.randint(0, 64, (2,))),
        axes={"x": ("batch", "seq", None), "ids": ("batch",)},
        dynamic={"batch": (1, 8), "seq": (1, 40)},
        specialize={"seq": [1, 16], "batch": 1},
        profiles={
            "pairs": {"batch": (2, 8, 2), "seq": 16},
            "odd": {"batch": 3},
            "wide": {"seq": (1, 16)},
        },
        keep_variants=True,
        out=tmp_path_factory.mktemp("bundles") / "net.tcpkg",
        targets=(LEVEL,),
    )
    assert list(report.variants) == VARIANTS
    assert [note.code for note in report.notes] == ["TC222"]  # wide fixes nothing
    assert {each.variant for each in report.verified} == {"", *VARIANTS}
    return Path(report.path)


def expected_variant(batch: int, seq: int) -> str:
    if batch == 1 and seq in (1, 16):
        return f"seq={seq},batch=1"
    if seq == 16 and batch in (2, 4, 6, 8):
        return "pairs"
    return "odd" if batch == 3 else "general"


def test_the_order_is_in_the_manifest_and_the_general_code_is_the_last(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
    assert [each.name for each in manifest.variants] == VARIANTS
    assert manifest.variants[-1].contract is None
    assert manifest.entry == manifest.variants[-1].entry
    assert json.loads(manifest.provenance.options["variants"])["pairs"] == "batch=2..8:2,seq=16"


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(0, 10),
    seq=st.integers(0, 44),
    layout=st.booleans(),
    index=st.integers(-66, 65),
)
def test_each_call_is_served_by_the_variant_whose_guards_it_meets_and_equals_eager(
    bundle: Path, net: Net, batch: int, seq: int, layout: bool, index: int
) -> None:
    model = _loaded(bundle)
    x = np.random.default_rng(seq).standard_normal((batch, seq, 8), dtype=np.float32)
    if layout:
        x = np.asfortranarray(x)
    ids = np.full((batch,), index)
    before = dict(model.metrics.variants)
    inside = 1 <= batch <= 8 and 1 <= seq <= 40 and -64 <= index < 64
    if not inside:
        with pytest.raises(GuardError):
            model(x, ids)
        assert model.metrics.variants == before
        return
    mean, double = model(x, ids)
    taken = [name for name, count in model.metrics.variants.items() if count > before[name]]
    assert taken == [expected_variant(batch, seq)]
    with torch.no_grad():
        want, _ = net(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(ids))
    np.testing.assert_allclose(mean, want, rtol=1e-4, atol=1e-4)
    assert double == 2 * seq


_models: dict[Path, tcexport.Model] = {}


def _loaded(bundle: Path) -> tcexport.Model:
    if bundle not in _models:
        _models[bundle] = tcexport.load(bundle)
    return _models[bundle]


def test_tensors_of_torch_go_to_the_same_variants(bundle: Path, net: Net) -> None:
    model = tcexport.load(bundle)
    with torch.no_grad():
        x, ids = torch.randn(1, 16, 8), torch.tensor([3])
        assert torch.allclose(model(x, ids)[0], net(x, ids)[0], atol=1e-4)
    assert model.metrics.variants == {name: int(name == "seq=16,batch=1") for name in VARIANTS}


def test_one_variant_alone_serves_its_own_sizes_and_refuses_the_others(bundle: Path) -> None:
    alone = tcexport.load(bundle, variant="pairs")
    general = tcexport.load(bundle, variant="general")
    x, ids = np.ones((4, 16, 8), np.float32), np.zeros((4,), np.int64)
    np.testing.assert_allclose(alone(x, ids)[0], general(x, ids)[0], rtol=1e-5)
    with pytest.raises(GuardError, match="the variant pairs") as error:
        alone(x[:3], ids[:3])
    assert error.value.code == "TC301"
    with pytest.raises(UsageError, match="no such variant") as unknown:
        tcexport.load(bundle, variant="pair")
    assert unknown.value.diagnostics[0].tries == ("variant='pairs'",)


def test_the_log_says_which_variant_was_taken_and_why_none_before_it(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tcexport.load(bundle)
    set_logs(variants=True)
    try:
        model(np.ones((3, 9, 8), np.float32), np.zeros((3,), np.int64))
    finally:
        set_logs()
    line = capsys.readouterr().err.splitlines()[-1]
    assert "took odd; not seq=1,batch=1: x axis 0 (batch): got 3, needs batch <= 1" in line
    assert "not pairs: x axis 0 (batch): got 3, needs batch in 2..8:2" in line
    model(np.ones((3, 9, 8), np.float32), np.zeros((3,), np.int64))
    assert capsys.readouterr().err == ""


def test_weights_are_those_of_a_bundle_without_variants(
    bundle: Path, net: Net, tmp_path: Path
) -> None:
    report = tcexport.export(
        net,
        (torch.randn(2, 9, 8), torch.randint(0, 64, (2,))),
        axes={"x": ("batch", "seq", None), "ids": ("batch",)},
        dynamic={"batch": (1, 8), "seq": (1, 40)},
        out=tmp_path / "plain.tcpkg",
        targets=(LEVEL,),
    )
    with open_bundle(report.path) as plain, open_bundle(bundle) as several:
        assert b'"variants"' not in encode(plain.manifest)
        large = {"table", "mix.weight:packed32", "mix.bias"}
        assert set(plain.manifest.entry.weights) == large
        assert all(large <= set(each.entry.weights) for each in several.manifest.variants)
        sizes = [
            {member.name: member.size for member in opened.manifest.members}
            for opened in (plain, several)
        ]
    code = "targets/cpu-x86-64-v3/model.so"
    assert set(sizes[0]) == set(sizes[1])
    assert sizes[1][code] < 4 * sizes[0][code]  # for five functions of a tiny model


def test_each_variant_is_built_for_each_target(net: Net, tmp_path: Path) -> None:
    error = missing_toolchain()
    if error is not None:
        pytest.skip(f"{error}; pip install 'tcexport[cuda]'")
    report = tcexport.export(
        net,
        (torch.randn(2, 9, 8), torch.randint(0, 64, (2,))),
        axes={"x": ("batch", "seq", None), "ids": ("batch",)},
        dynamic={"batch": (1, 8), "seq": (1, 40)},
        specialize={"seq": 16, "batch": 1},
        out=tmp_path / "m.tcpkg",
        targets=(LEVEL, "cuda:sm_80"),
        keep_variants=True,
    )
    with open_bundle(report.path) as opened:
        manifest = opened.manifest
    on_cpu, on_gpu = manifest.targets
    assert not on_cpu.entries and on_gpu.entry is None
    of_cpu, of_gpu = routes(manifest, on_cpu), routes(manifest, on_gpu)
    assert [each.name for each in of_gpu] == [each.name for each in of_cpu]
    assert [each.entry.function for each in of_gpu] == ["v1_main", "main"]
    assert all(not each.entry.given and not each.entry.into for each in of_gpu)
    assert [each.contract for each in of_gpu] == [each.contract for each in of_cpu]
    x, ids = np.ones((1, 16, 8), np.float32), np.zeros((1,), np.int64)
    model = tcexport.load(report.path, device="cpu")
    with torch.no_grad():
        want = net(torch.from_numpy(x), torch.from_numpy(ids))[0]
    np.testing.assert_allclose(model(x, ids)[0], want, rtol=1e-4, atol=1e-4)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("specialize", "code", "says"),
    [
        ({"seq": 41}, "TC220", "seq=41 is not served: seq is 1..40"),
        ({"seq": (8, 41)}, "TC220", "seq=8..41 is not served"),
        ({"sek": 4}, "TC006", "there is no dynamic dim sek"),
        ({"seq": [*range(1, 10)]}, "TC221", "9 variants are asked for, and the limit is 8"),
    ],
)
def test_what_cannot_be_a_variant_is_refused(
    net: Net, tmp_path: Path, specialize: dict, code: str, says: str
) -> None:
    with pytest.raises((ExportError, UsageError), match=says) as error:
        tcexport.export(
            net,
            (torch.randn(2, 9, 8), torch.randint(0, 64, (2,))),
            axes={"x": ("batch", "seq", None), "ids": ("batch",)},
            dynamic={"batch": (1, 8), "seq": (1, 40)},
            specialize=specialize,
            out=tmp_path / "x.tcpkg",
            targets=(LEVEL,),
        )
    assert error.value.code == code
    assert not list(tmp_path.iterdir())


def test_options_multiply_and_profiles_stand_alone() -> None:
    found = parse_profiles(["seq=128,256", "batch=1"], ["small:batch=1..4,seq=1", "b:seq=8..64:8"])
    assert [each.name for each in found] == ["seq=128,batch=1", "seq=256,batch=1", "small", "b"]
    assert found[2] == Profile("small", {"batch": Span(1, 4), "seq": Span(1, 1)})
    python = profiles_from_python(
        {"seq": [128, 256], "batch": 1},
        {"small": {"batch": (1, 4), "seq": 1}, "b": {"seq": (8, 64, 8)}},
    )
    assert python == found
    assert [each.name for each in parse_profiles(["batch=1,seq=2,3"], [])] == [
        "batch=1,seq=2",
        "batch=1,seq=3",
    ]


@pytest.mark.parametrize(
    ("specialize", "profiles"),
    [
        (["seq"], []),
        (["128"], []),
        (["seq="], []),
        (["seq=4..2"], []),
        (["seq=4,4"], []),
        (["seq=4", "seq=4"], []),
        (["seq=4,batch=1,seq=8"], []),
        (["1x=4"], []),
        ([], ["batch=1"]),
        ([], ["general:batch=1"]),
        ([], [":batch=1"]),
        (["batch=1"], ["one:batch=1"]),
        ([], ["a:batch=1", "a:batch=2"]),
        (["seq=1..5:0"], []),
    ],
)
def test_a_malformed_or_doubled_request_is_refused(specialize: list, profiles: list) -> None:
    with pytest.raises(UsageError) as error:
        parse_profiles(specialize, profiles)
    assert error.value.code == "TC008"


SPANS = st.builds(
    lambda lo, count, step: Span(lo, None if count is None else lo + count * step, step),
    st.integers(0, 12),
    st.none() | st.integers(0, 6),
    st.integers(1, 4),
)


@given(a=SPANS, b=SPANS)
def test_the_intersection_of_two_ranges_holds_what_both_hold(a: Span, b: Span) -> None:
    shared = intersection({"n": a}, {"n": b})
    for size in range(60):
        assert (shared is not None and size in shared["n"]) == (size in a and size in b)
