"""Where a model runs: ``load(device=…)`` made a binary of the bundle and a device."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..artifacts.container import Bundle
from ..artifacts.contract import TensorInput
from ..artifacts.errors import BundleError, Diagnostic
from ..artifacts.manifest import WEIGHTS_NAME, Manifest, Target, entry_of
from ..artifacts.weights import WeightsError, read_weights
from .library import code_of, load_cuda_runtime, load_runtime
from .machine import Machine, choose_target
from .tensors import COMPLEX

if TYPE_CHECKING:
    from .gpu_call import OnGpu

_logger = logging.getLogger("tcexport.device")


@dataclass(frozen=True)
class Placement:
    """``gpu`` is None on the CPU; ``fallback`` says why device="auto" took the CPU of a bundle that
    has a binary for GPUs."""

    target: Target
    gpu: OnGpu | None = None
    fallback: BundleError | None = None


def place(bundle: Bundle, device: str, machine: Machine) -> Placement:
    """Choose the binary and the device, verify the bundle, and bring its weights there.

    Args:
        device: "cpu", "cuda", "cuda:N", or "auto": the GPU where the bundle has a binary for it,
            else the CPU; where that is second choice, it is logged as a warning.

    Raises:
        BundleError: TC407, no such device; TC404, TC420 to TC425, it cannot run there; TC402, TC405.
    """
    targets = bundle.manifest.targets
    on_gpu = any(target.cuda is not None for target in targets)
    on_cpu = any(target.cuda is None for target in targets)
    if device == "cpu" or (device == "auto" and not on_gpu):
        if on_gpu and not on_cpu:
            raise _not_there(bundle, device, "GPUs alone", "device='cuda'")
        return _on_cpu(bundle, machine)
    from .gpu import device_index  # bundles for the CPU do without

    index = 0 if device == "auto" else device_index(device)
    if index is None:
        raise _not_there(
            bundle, device, "no such device", "device='auto', 'cpu', 'cuda' or 'cuda:1'"
        )
    if not on_gpu:
        raise _not_there(bundle, device, "the CPU alone", "device='auto'")
    try:
        return _on_gpu(bundle, machine, index)
    except BundleError as error:
        if device != "auto" or not on_cpu:
            raise
        found = _on_cpu(bundle, machine, error)
        _logger.warning("%s runs on the CPU: %s", bundle.path, error)
        return found


def _on_cpu(bundle: Bundle, machine: Machine, fallback: BundleError | None = None) -> Placement:
    target = choose_target(bundle.manifest.targets, machine, bundle.path)
    bundle.verify(copied=code_of(bundle, target, machine))
    load_runtime(bundle, machine)
    return Placement(target, None, fallback)


def _on_gpu(bundle: Bundle, machine: Machine, index: int) -> Placement:
    from .gpu import choose_gpu, this_driver

    if on_cpu_alone := _on_cpu_alone(bundle.manifest):
        what = f"{bundle.path} {on_cpu_alone}, which is for the CPU alone"
        raise BundleError(Diagnostic("TC407", what, tries=("device='cpu'",)))
    targets = bundle.manifest.targets
    target, _ = choose_gpu(targets, machine, this_driver(), index, bundle.path)
    bundle.verify(copied=code_of(bundle, target, machine))
    from .cuda import device_of
    from .gpu_call import OnGpu

    load_runtime(bundle, machine)
    device = device_of(bundle, index, lambda: load_cuda_runtime(bundle, machine))
    names = entry_of(bundle.manifest, target).weights
    found = read_weights(bundle.view(WEIGHTS_NAME)) if names else {}
    missing = [name for name in names if name not in found]
    if missing:
        raise WeightsError(f"{WEIGHTS_NAME} has no tensor {missing[0]!r:.80}")
    return Placement(target, OnGpu(device, device.upload(bundle, found, names)))


def _on_cpu_alone(manifest: Manifest) -> str:
    if manifest.states:
        return "keeps state from call to call"
    inputs = manifest.contract.inputs
    if any(isinstance(item, TensorInput) and item.dtype in COMPLEX for item in inputs):
        return "takes complex numbers"
    return ""


def _not_there(bundle: Bundle, device: str, what: str, attempt: str) -> BundleError:
    return BundleError(
        Diagnostic(
            "TC407",
            f"device={device!r}: {bundle.path} holds binaries for {what}"
            if what.endswith("alone")
            else f"device={device!r}: there is {what}",
            tries=(attempt,),
        )
    )
