"""A bundle as `export` makes it for one architecture, and the CUDA source of its kernels.

The stand-in cannot run machine code: it runs the same kernels from their CUDA source, which is made a
second time, and known to be the one that was compiled because the cache of compiled kernels has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import tcexport
from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import ExportError
from tcexport.lowering import lower
from tcexport.lowering.answer import Request
from tcexport.lowering.cuda import cache
from tcexport.lowering.cuda.blob import read_blob
from tcexport.lowering.cuda.device_code import device_code
from tcexport.lowering.cuda.nvrtc import OPTIONS
from tcexport.lowering.cuda.toolchain import VERSION, find_toolchain
from tcexport.lowering.elf import dynamic_symbol

from . import standin

ARCHITECTURE = "sm_90"


@dataclass(frozen=True)
class Exported:
    """A bundle, the model that it is of, and the CUDA source of its kernels."""

    path: Path
    model: torch.nn.Module
    source: str

    def for_standin(self, kernels: Path) -> Path:
        """The bundle, once its kernels are where the stand-in looks for them."""
        standin.build_kernels(self.source, machine_code(self.path), kernels)
        return self.path


def exported_for_gpu(
    folder: Path,
    model: torch.nn.Module,
    example: tuple[Any, ...],
    *,
    also: tuple[str, ...] = (),
    **options: Any,
) -> Exported:
    """``also`` are further targets; ``options`` are those of `tcexport.export`."""
    try:
        find_toolchain()
    except ExportError as error:
        pytest.skip(f"{error.diagnostics[0].message}; pip install 'tcexport[cuda]'")
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

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.FOLDER, str(folder / "cache"))
        patch.setattr(lower, "_run_worker", told)
        targets = (*also, f"cuda:{ARCHITECTURE}")
        out = folder / "model.tcpkg"
        report = tcexport.export(model.eval(), example, out=out, targets=targets, **options)
        text = source.read_text()
        key = cache.key_of(VERSION, ARCHITECTURE, *OPTIONS, text, *device_code(text))
        assert cache.lookup(key) is not None, "another source was compiled"
    return Exported(Path(report.path), model, text)


def machine_code(bundle: Path) -> bytes:
    """The fat binary in the library of a bundle."""
    with open_bundle(bundle) as opened:
        (target,) = [each for each in opened.manifest.targets if each.cuda is not None]
        library = bytes(opened.view(target.library))
    place = dynamic_symbol(library, b"__tvm_ffi__library_bin")
    assert place is not None
    (code,) = read_blob(library[place:]).device_codes()
    assert code.format == "fatbin"
    return code.code
