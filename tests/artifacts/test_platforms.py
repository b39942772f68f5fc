"""CUDA architectures: which code runs on which device, and what a manifest may say of them."""

from __future__ import annotations

import msgspec
import pytest

from tcexport.artifacts.contract import Contract, TupleNode
from tcexport.artifacts.manifest import (
    CudaCode,
    Entry,
    Manifest,
    ManifestError,
    Member,
    Provenance,
    Target,
    decode,
    encode,
    entry_of,
)
from tcexport.artifacts.platforms import CUDA_ARCHITECTURES, capability, runs_on

CODE = CudaCode(("sm_80", "sm_90"), "compute_90", "13.0", "13.0", "nvrtc 13.0.88", ("add_kernel",))


@pytest.mark.parametrize(
    ("architecture", "device", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_80", (8, 7), False),  # a Tegra takes its own code alone
        ("sm_87", (8, 7), True),
        ("sm_87", (8, 9), False),
        ("sm_120", (12, 1), True),
        ("sm_100", (12, 0), False),
        ("compute_80", (7, 5), False),
        ("compute_80", (8, 7), True),
        ("compute_90", (12, 0), True),
    ],
)
def test_machine_code_runs_within_a_major_version_and_ptx_on_all_later_ones(
    architecture: str, device: tuple[int, int], runs: bool
) -> None:
    assert runs_on(architecture, device) is runs


def test_architectures_are_known_in_the_order_of_their_capability() -> None:
    assert list(CUDA_ARCHITECTURES) == sorted(CUDA_ARCHITECTURES, key=capability)
    for text in ("sm_9", "sm_90a", "sm90", "compute_", "sm_0", "90", "sm_09"):
        with pytest.raises(ValueError, match="no CUDA architecture"):
            capability(text)


def _manifest(code: CudaCode | None, entry: Entry | None = None) -> Manifest:
    return Manifest(
        format_version=1,
        model="M",
        contract=Contract(
            dims=(),
            parameters=(),
            inputs=(),
            guards=(),
            index_guards=(),
            outputs=(),
            result=TupleNode(()),
        ),
        entry=Entry("main", (), (), (), 0),
        targets=(
            Target("cuda:sm_80", "linux", "x86_64", "x86-64-v2", "2.27", "m.so", code, entry),
        ),
        runtimes=(),
        provenance=Provenance("0.1.0", "", "", {}, {}, ""),
        members=(Member("m.so", 1, "0" * 64),),
    )


def test_gpu_code_and_its_entry_come_back_as_they_were_written() -> None:
    own = Entry("main", (), (), (), 2)
    manifest = _manifest(CODE, own)
    again = decode(encode(manifest))
    assert again.targets[0].cuda == CODE
    assert entry_of(again, again.targets[0]) == own


def test_a_target_without_gpu_code_says_nothing_of_it() -> None:
    text = encode(_manifest(None))
    assert b'cuda"' not in text
    again = decode(text)
    assert entry_of(again, again.targets[0]) == again.entry


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": (), "ptx": ""}, "neither machine code nor PTX"),
        ({"architectures": ("sm_90a",)}, "sm_90a"),
        ({"architectures": ("compute_90",)}, "where sm_"),
        ({"ptx": "sm_90"}, "where compute_"),
        ({"driver": ""}, "no version of CUDA"),
        ({"ptx_driver": "13"}, "no version of CUDA"),
    ],
)
def test_gpu_code_that_makes_no_sense_is_no_manifest(changes: dict[str, object], says: str) -> None:
    code = msgspec.structs.replace(CODE, **changes)
    with pytest.raises(ManifestError, match=says):
        decode(encode(_manifest(code)))


def test_an_entry_of_a_target_is_held_against_the_contract() -> None:
    with pytest.raises(ManifestError, match="takes input 3"):
        decode(encode(_manifest(CODE, Entry("main", (3,), (), (), 0))))
