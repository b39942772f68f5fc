"""Where a model runs: ``load(device=…)`` made a binary of the bundle and a device, in two steps: what
is refused for other reasons need not be verified or brought to a GPU before."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..artifacts.container import Bundle
from ..artifacts.contract import TensorInput
from ..artifacts.errors import BundleError, Diagnostic, UsageError
from ..artifacts.manifest import Manifest, Target, routes
from ..artifacts.weights import Weight
from .library import LOADING, code_of, load_cuda_runtime, load_runtime
from .machine import Machine, choose_target
from .mapped import Initial, initial_states, weights_of
from .tensors import COMPLEX

if TYPE_CHECKING:
    from .gpu_call import OnGpu

_logger = logging.getLogger("tcexport.device")
_GRAPHS = 16  # of a model, unless another number is asked for


@dataclass(frozen=True)
class Choice:
    """Where a bundle is to run; nothing of it was verified or loaded yet.

    Attributes:
        target: the binary.
        gpu: the number of the GPU; None for the CPU.
        fallback: why device="auto" took the CPU of a bundle that has a binary for GPUs.
        or_cpu: the CPU will do, where the GPU turns out to have no room.
    """

    target: Target
    gpu: int | None = None
    fallback: BundleError | None = None
    or_cpu: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.gpu is not None


@dataclass(frozen=True)
class Placement:
    """``weights``: those of the bundle; ``initial``: what its states start as. ``gpu`` is None on the
    CPU; ``fallback`` as in `Choice`."""

    target: Target
    weights: dict[str, Weight]
    initial: Initial
    gpu: OnGpu | None = None
    fallback: BundleError | None = None


def choose(bundle: Bundle, manifest: Manifest, device: str, machine: Machine) -> Choice:
    """Choose the binary and the device.

    Args:
        manifest: the bundle's, or as much of it as is to be served.
        device: "cpu", "cuda", "cuda:N", or "auto": the GPU where the bundle has a binary for it,
            else the CPU; where that is second choice, it is logged as a warning.

    Raises:
        BundleError: TC407, no such device; TC404, TC420 to TC423, it cannot run there.
    """
    targets = manifest.targets
    on_gpu = any(target.cuda is not None for target in targets)
    on_cpu = any(target.cuda is None for target in targets)
    if device == "cpu" or (device == "auto" and not on_gpu):
        if on_gpu and not on_cpu:
            raise _not_there(bundle, device, "GPUs alone", "device='cuda'")
        return Choice(choose_target(targets, machine, bundle.path))
    with LOADING:
        from .gpu import device_index  # bundles for the CPU do without

    index = 0 if device == "auto" else device_index(device)
    if index is None:
        raise _not_there(
            bundle, device, "no such device", "device='auto', 'cpu', 'cuda' or 'cuda:1'"
        )
    if not on_gpu:
        raise _not_there(bundle, device, "the CPU alone", "device='auto'")
    or_cpu = device == "auto" and on_cpu
    try:
        return Choice(_for_gpu(bundle, manifest, machine, index), index, or_cpu=or_cpu)
    except BundleError as error:
        if not or_cpu:
            raise
        return _second_choice(bundle, manifest, machine, error)


def graph_limit(asked: bool | int, device: str, choice: Choice) -> int:
    """How many graphs ``load(cuda_graphs=…)`` asks for; on the CPU there are none.

    Raises:
        UsageError: TC008, neither a bool nor a number from 0; or asked for on the CPU.
    """
    if not isinstance(asked, int) or asked < 0:
        raise UsageError(
            Diagnostic(
                "TC008",
                f"cuda_graphs={asked!r:.40}: needs True, False or the number of sizes to keep "
                "graphs for",
            )
        )
    if asked and not choice.on_gpu and device != "auto":
        raise UsageError(
            Diagnostic(
                "TC008",
                f"cuda_graphs={asked} is of a GPU; {choice.target.name} runs on the CPU",
                tries=("device='cuda'", "load it without cuda_graphs"),
            )
        )
    return _GRAPHS if asked is True else int(asked)


def bring(bundle: Bundle, manifest: Manifest, choice: Choice, machine: Machine) -> Placement:
    """Verify the bundle, read its weights, load the runtime, and bring the weights to where they are
    needed. No code of a bundle is loaded before all else in it was found sound.

    Raises:
        BundleError: TC402, TC404, TC405; TC424, TC425, the GPU cannot be used.
        WeightsError: a weight is not there, or the member is damaged.
    """
    if choice.gpu is not None:
        try:
            return _on_gpu(bundle, manifest, choice.target, machine, choice.gpu)
        except BundleError as error:
            if not choice.or_cpu:
                raise
            choice = _second_choice(bundle, manifest, machine, error)
    bundle.verify(copied=code_of(bundle, choice.target, machine))
    weights, initial = _read(bundle, manifest, choice.target)
    load_runtime(bundle, machine)
    return Placement(choice.target, weights, initial, None, choice.fallback)


def _read(bundle: Bundle, manifest: Manifest, target: Target) -> tuple[dict[str, Weight], Initial]:
    names = [*_weights_named(manifest, target), *(row.initial for row in manifest.states)]
    weights = weights_of(bundle, filter(None, names))
    return weights, initial_states(manifest.states, weights)


def _weights_named(manifest: Manifest, target: Target) -> tuple[str, ...]:
    held = [route.entry.weights for route in routes(manifest, target)]
    return tuple(dict.fromkeys(name for each in held for name in each))


def _second_choice(
    bundle: Bundle, manifest: Manifest, machine: Machine, error: BundleError
) -> Choice:
    target = choose_target(manifest.targets, machine, bundle.path)
    _logger.warning("%s runs on the CPU: %s", bundle.path, error)
    return Choice(target, fallback=error)


def _for_gpu(bundle: Bundle, manifest: Manifest, machine: Machine, index: int) -> Target:
    with LOADING:
        from ..artifacts.gpus import this_driver
        from .gpu import choose_gpu

    if on_cpu_alone := _on_cpu_alone(manifest):
        what = f"{bundle.path} {on_cpu_alone}, which is for the CPU alone"
        raise BundleError(Diagnostic("TC407", what, tries=("device='cpu'",)))
    target, _ = choose_gpu(manifest.targets, machine, this_driver(), index, bundle.path)
    return target


def _on_gpu(
    bundle: Bundle, manifest: Manifest, target: Target, machine: Machine, index: int
) -> Placement:
    bundle.verify(copied=code_of(bundle, target, machine))
    weights, initial = _read(bundle, manifest, target)
    with LOADING:
        from .cuda import device_of
        from .gpu_call import OnGpu

    load_runtime(bundle, machine)
    device = device_of(bundle, index, lambda: load_cuda_runtime(bundle, machine))
    names = _weights_named(manifest, target)
    uploaded = device.upload(bundle, weights, names)
    return Placement(target, weights, initial, OnGpu(device, uploaded, names))


def _on_cpu_alone(manifest: Manifest) -> str:
    if manifest.generator:
        return "draws random numbers"
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
