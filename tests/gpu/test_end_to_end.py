"""From `export` to a call: a bundle with the compiler's own machine code, loaded on the stand-in.

The stand-in cannot run machine code: it runs the same kernels from their CUDA source, which is made a
second time, and known to be the one that was compiled because the cache of compiled kernels has it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import tcexport
from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import ExportError, GuardError
from tcexport.lowering import lower
from tcexport.lowering.answer import Request
from tcexport.lowering.cuda import cache
from tcexport.lowering.cuda.blob import read_blob
from tcexport.lowering.cuda.device_code import device_code
from tcexport.lowering.cuda.nvrtc import OPTIONS
from tcexport.lowering.cuda.toolchain import VERSION, find_toolchain
from tcexport.lowering.elf import dynamic_symbol
from tcexport.lowering.targets import gpu_target

from ..lowering.gpu_numbers import model_of
from . import standin

ARCHITECTURE = "sm_90"
TOLERANCE = 2e-3  # float16
SIZES = ((2, 9), (1, 1), (3, 70), (4, 128))


@dataclass(frozen=True)
class Exported:
    """A bundle, the model that it is of, and the CUDA source of its kernels."""

    path: Path
    model: torch.nn.Module
    source: str


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """The encoder in float16 with dynamic sizes, exported for one architecture."""
    try:
        find_toolchain()
    except ExportError as error:
        pytest.skip(f"{error.diagnostics[0].message}; pip install 'tcexport[cuda]'")
    folder = tmp_path_factory.mktemp("export")
    source = folder / "kernels.cu"
    original = lower._run_worker

    def told(request_path: Path, progress: Callable[[str, float | None], None]) -> None:
        original(request_path, progress)
        if not msgspec.json.decode(request_path.read_bytes(), type=Request).only_survey:
            subprocess.run(
                [sys.executable, str(Path(__file__).with_name("kernel_source.py")),
                 str(request_path), str(source)],
                check=True,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"},
            )  # fmt: skip

    torch.manual_seed(0)
    model, (example, *_), _ = model_of("encoder", torch.float16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.FOLDER, str(folder / "cache"))
        patch.setattr(lower, "_run_worker", told)
        report = tcexport.export(
            model.eval(),
            example,
            axes={"ids": ("batch", "seq"), "keep": ("batch", "seq")},
            dynamic={"batch": (1, 4), "seq": (1, 128)},
            out=folder / "encoder.tcpkg",
            targets=(f"cuda:{ARCHITECTURE}",),
        )
        text = source.read_text()
        key = cache.key_of(VERSION, ARCHITECTURE, *OPTIONS, text, *device_code(text))
        assert cache.lookup(key) is not None, "another source was compiled"
    yield Exported(Path(report.path), model, text)


def machine_code(bundle: Path) -> bytes:
    """The fat binary in the library of a bundle."""
    with open_bundle(bundle) as opened:
        (target,) = opened.manifest.targets
        library = bytes(opened.view(target.library))
    place = dynamic_symbol(library, b"__tvm_ffi__library_bin")
    assert place is not None
    (code,) = read_blob(library[place:]).device_codes()
    assert code.format == "fatbin"
    return code.code


@pytest.mark.parametrize("order", ("", "reverse"))
def test_an_exported_encoder_gives_eagers_numbers_at_every_size(
    exported: Exported,
    kernels: Path,
    driver: Callable[..., None],
    libraries: tuple[ctypes.CDLL, ctypes.CDLL],
    order: str,
) -> None:
    driver(devices="9.0", order=order)
    standin.build_kernels(exported.source, machine_code(exported.path), kernels)
    loaded = tcexport.load(exported.path, device="cuda")
    assert loaded.device == "cuda:0"
    assert loaded.target.name == gpu_target([ARCHITECTURE]).name
    generator = torch.Generator().manual_seed(1)
    for batch, seq in SIZES:
        ids = torch.randint(0, 50, (batch, seq), generator=generator)
        keep = torch.ones(batch, seq, dtype=torch.bool)
        keep[0, seq // 2 + 1 :] = False
        with torch.no_grad():
            wanted = exported.model(ids, keep).numpy()
        found = loaded(ids.numpy(), keep.numpy())
        assert found.dtype == np.float16 and found.shape == wanted.shape
        np.testing.assert_allclose(
            found.astype(np.float32), wanted.astype(np.float32), rtol=0, atol=TOLERANCE
        )
    recorded = tcexport.load(exported.path, device="cuda", cuda_graphs=True)
    for seed in range(4):
        ids = torch.randint(0, 50, (3, 70), generator=generator).numpy()
        keep = np.random.default_rng(seed).random((3, 70)) < 0.7
        np.testing.assert_array_equal(recorded(ids, keep), loaded(ids, keep))
    assert recorded.metrics.replays == 2
    for ids, what in (
        (np.zeros((1, 129), np.int64), "TC301"),
        (np.full((1, 3), 50, np.int64), "TC309"),
    ):
        with pytest.raises(GuardError, match=what):
            loaded(ids, np.ones(ids.shape, np.bool_))
    libraries[0].standin_check()  # no kernel wrote beside its memory
