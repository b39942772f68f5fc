"""What several tests share: exports made once, and an environment that holds the runtime alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
MODELS = Path(__file__).parent / "models"
LEVEL = "cpu:x86-64-v3"


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """A test run in the background of a shell is deaf to SIGINT, and so would be what it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Each test draws the same numbers in every run: what they are compared by is made for them."""
    import torch

    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-ops",
        action="store_true",
        help="write the ops that are compared with eager to tests/lowering/ops.json",
    )


@pytest.fixture(scope="session")
def export_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``export_once(name, module, args, axes=…, dynamic=…)``: the bundle, made at the first call."""
    folder = tmp_path_factory.mktemp("bundles")

    def export(name: str, module: Any, args: Any, **options: Any) -> Path:
        import tcexport

        path = folder / f"{name}.tcpkg"
        if not path.exists():
            tcexport.export(module.eval(), args, out=path, targets=(LEVEL,), **options)
        return path

    return export


@pytest.fixture(scope="session")
def model_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``model_bundle("bert")``: one of tests/models, exported by the command line."""
    folder = tmp_path_factory.mktemp("models")

    def bundle(name: str) -> Path:
        path = folder / f"{name}.tcpkg"
        if not path.exists():
            dims = {
                "text_encoder": ["batch=1..16", "seq=1..1024"],
                "residual_net": ["batch=1..64"],
                "recommender": ["batch"],
                "bert": ["batch", "seq"],
            }[name]
            options = [each for dim in dims for each in ("--dynamic", dim)]
            command = [sys.executable, "-m", "tcexport", str(MODELS / f"{name}.py"), *options]
            done = subprocess.run(
                [*command, "--target", LEVEL, "-o", str(path)], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        return path

    return bundle


@pytest.fixture(scope="session")
def runtime_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment in which a wheel of this checkout is installed, and so
    neither torch nor a compiler."""
    folder = tmp_path_factory.mktemp("runtime")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("tcexport-*.whl")
    environment = folder / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", str(wheel)], check=True, capture_output=True)
    return python
