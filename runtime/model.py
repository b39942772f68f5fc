"""A loaded bundle: checks each call, runs the compiled code, gives back what eager would."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.container import open_bundle
from ..artifacts.contract import (
    Contract,
    ContractError,
    SizeOutput,
    TensorInput,
    TensorOutput,
)
from ..artifacts.errors import BundleError, Diagnostic, GuardError, InternalError, UsageError
from ..artifacts.logs import log
from ..artifacts.manifest import Manifest, Target
from ..artifacts.signature import TrustedKeys, key_list, verify_signature
from ..artifacts.weights import WeightsError
from .asynchronous import AsyncCalls
from .calls import Calls
from .coverage import Serves, check_serves, parts_of
from .explain import conditions, look
from .guards import Sizes, compile_dispatch, compile_torch_dispatch
from .library import LOADING, load_library
from .machine import this_machine
from .mapped import map_weights
from .memory import give_back, limited
from .placement import Choice, bring, choose, graph_limit
from .session import Session, without_session
from .short import MISS, Short, Way, for_numpy, for_torch
from .shutdown import is_ending, wait_if_ending, watch
from .structure import bind, builder, is_plain
from .tensors import (
    CPU,
    Exporter,
    device_name,
    exporter_of,
    to_numpy,
)
from .threads import POOLS, thread_count
from .told import Told
from .variants import Route, alike, choice, pinned, refuse, routes_of
from .warmup import warm_up
from .worker import ON_CPU, Code, Metrics

if TYPE_CHECKING:
    from .cuda import GpuMemory

OnViolation = Callable[[tuple[Any, ...], dict[str, Any], GuardError], Any]


def load(
    path: str | os.PathLike[str],
    *,
    serves: Serves | None = None,
    device: str = "auto",
    num_threads: int | None = None,
    on_violation: OnViolation | None = None,
    require_signature: TrustedKeys | None = None,
    memory_limit: int | None = None,
    variant: str | None = None,
    count_sizes: bool = False,
    cuda_graphs: bool | int = False,
) -> Model:
    """Load a bundle and make it ready to be called.

    Args:
        path: the .tcpkg file. It is mapped; replace it by renaming another over it.
        serves: ranges that must be served, ``{"seq": (1, 512)}`` or with a step as third number.
        device: "cpu", "cuda", "cuda:1", or "auto": a GPU where the bundle holds code for it, else
            the CPU. Where the GPU cannot be had, "auto" logs a warning and `fallback` says why.
        num_threads: worker threads for one call; by default TCEXPORT_NUM_THREADS or the usable
            cores.
        on_violation: called with the arguments, the keyword arguments and the GuardError of every
            call that is refused; what it returns is the call's answer. Without it the error is
            raised.
        require_signature: the public keys to trust: a PEM file or a key list by its path, PEM or
            the 32 bytes of a key as bytes, or several of these. The file is read into memory, and
            refused before a byte of it is believed unless one of these keys signed all of it.
        memory_limit: bytes that one call may allocate, beside its arguments and the weights. A call
            that would need more is refused before it runs, as one outside of the contract is; what
            ``serves`` names must be possible within the limit.
        variant: serve with this one of the bundle's variants alone, and nothing else, to compare it
            with the others. By default each call goes to the first one that takes it.
        count_sizes: count in `Model.seen` which sizes calls have, for `tcexport advise`.
        cuda_graphs: on a GPU, record what a call queues when its sizes come for the second time, and
            queue it as one from then on. A number says for how many sizes that is kept, True is 16.
            Refused for the CPU, unless ``device`` is "auto".

    Raises:
        BundleError: the file is not a sound bundle (TC401 to TC403), is not trusted (TC408,
            TC409), cannot run here (TC404, TC405, TC407, TC420 to TC425) or does not serve what is
            asked (TC406).
        UsageError: an argument is malformed, or names no variant (TC006).
    """
    return Model(
        Path(path),
        serves=serves,
        device=device,
        num_threads=num_threads,
        on_violation=on_violation,
        require_signature=require_signature,
        memory_limit=memory_limit,
        variant=variant,
        count_sizes=count_sizes,
        cuda_graphs=cuda_graphs,
    )


class Model:
    """A bundle, callable as the exported module was. Any number of threads may call it.

    Attributes:
        path: the file it was loaded from.
        contract: what every call is held against.
        manifest: what the file says of itself.
        states: what it keeps from call to call; then it is called through a `session`.
        target: the binary chosen for this machine.
        fallback: why device="auto" took the CPU, when the bundle holds code for GPUs.
        num_threads: worker threads for one call.
    """

    def __init__(
        self,
        path: Path,
        *,
        serves: Serves | None,
        device: str,
        num_threads: int | None,
        on_violation: OnViolation | None,
        require_signature: TrustedKeys | None = None,
        memory_limit: int | None = None,
        variant: str | None = None,
        count_sizes: bool = False,
        cuda_graphs: bool | int = False,
    ) -> None:
        if on_violation is not None and not callable(on_violation):
            raise UsageError(
                Diagnostic("TC008", f"on_violation={on_violation!r:.80} cannot be called")
            )
        wait_if_ending()
        begun = time.perf_counter()
        self.num_threads = thread_count(num_threads)
        self.async_calls = AsyncCalls(self.num_threads)
        bundle = open_bundle(path, accept=_signed_by(require_signature))
        self.path = bundle.path
        self.manifest: Manifest = bundle.manifest
        if variant is not None:
            self.manifest = pinned(self.manifest, variant, bundle.path)
        machine = this_machine()
        chosen = choose(bundle, self.manifest, device, machine)
        graphs = graph_limit(cuda_graphs, device, chosen)
        if memory_limit is not None:
            if chosen.on_gpu:
                raise _limit_of_a_gpu(memory_limit, chosen)
            self.manifest = limited(self.manifest, chosen.target, memory_limit, bundle.path)
        self.contract: Contract = self.manifest.contract
        self.states = self.manifest.states
        if serves is not None:
            check_serves(self.contract, serves, bundle.path, parts_of(self.manifest))
        try:
            placement = bring(bundle, self.manifest, chosen, machine)
            self.target: Target = placement.target
            self.fallback = placement.fallback
            self._gpu = gpu = placement.gpu
            self._counted = [dim.name for dim in self.contract.dims] if count_sizes else []
            self._routes = routes_of(self.manifest, self.target, self._counted, given=not gpu)
            self._checks = compile_dispatch(self.contract, self._routes)
            self._build = builder(self.contract.result)
            weights, span = (
                (gpu.weights_of([route.entry for route in self._routes]), gpu.weights.span)
                if gpu
                else map_weights(
                    bundle, placement.weights, [route.entry.weights for route in self._routes]
                )
            )
            self._initial = placement.initial
        except (ContractError, WeightsError) as error:
            raise BundleError(
                Diagnostic(
                    "TC401",
                    f"{bundle.path} is not a bundle: {error}",
                    tries=("fetch or export it again",),
                )
            ) from None
        vm = gpu.vm if gpu else ON_CPU
        entries = tuple(route.entry for route in self._routes)
        code = Code(load_library(bundle, self.target.library), entries, weights, vm)
        names = [route.name for route in self._routes]
        self._told = Told(self.path, names, self._counted)
        self._calls = Calls(self.path, code, self._routes, self.num_threads, span, self._told)
        self._on_gpu = (
            gpu.caller(
                self._calls,
                graphs,
                bundle.view(self.target.library),
                stateful=bool(self.states),
            )
            if gpu
            else None
        )
        self._run = self._on_gpu.run if self._on_gpu else self._calls.run
        POOLS.expect(self.num_threads)
        self._on_violation = on_violation
        self._tell()
        self._plain = is_plain(self.contract.parameters)
        self._arity = len(self.contract.parameters)
        self._first = next(
            (at for at, item in enumerate(self.contract.inputs) if isinstance(item, TensorInput)),
            None,
        )
        self._exporters: dict[type, Exporter] = {}
        self._accepted = gpu.device.place if gpu else CPU
        self._shorts: dict[type, Short] = {}
        self._leading = self._first or 0
        self._learn(np.ndarray)
        self._calls.start()  # what the library lacks fails here, not in a call
        watch(self)
        listener = log("runtime")
        if listener is not None:
            taken = f"{1e3 * (time.perf_counter() - begun):.1f} ms"
            listener.info("%s: loaded in %s, %d threads a call", self.path, taken, self.num_threads)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Tensors may be numpy arrays or anything on the CPU that has ``__dlpack__``; results come in
        the library of the first tensor argument.

        Raises:
            GuardError: the call lies outside of the contract, and there is no ``on_violation``.
                Nothing was run, unless it is an index that the model computes.
            InternalError: TC601, the compiled code failed.
            UsageError: TC321, the model keeps state: call it through a `session`.
        """
        if self._shorts and not kwargs and len(args) == self._arity:
            short = self._shorts.get(type(args[self._leading]))
            if short is not None and (self._choice is None or not self._tells_choices()):
                try:
                    answer = short(args)
                except GuardError as error:
                    return self._refused(args, kwargs, error)
                if answer is not MISS:
                    return answer
        return self.answer(args, kwargs, None)

    def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any], session: Session | None) -> Any:
        """What a call gives, by the long way, on the state of ``session``. (`Session` calls this.)"""
        if session is None and self.states:
            raise without_session(self.manifest)
        try:
            if self._plain and not kwargs and len(args) == self._arity:
                flat: Sequence[Any] = args
            else:
                flat = bind(self.contract, args, kwargs)
            leaves = flat
            try:
                sizes = self._checks.numpy(flat)
            except Exception:  # whatever it was, the closer look says it
                sizes = None
            if sizes is None:
                leaves, sizes = self._look_closer(flat)
            route = self._routes[sizes[-1]]
            if self._choice is not None and self._tells_choices():
                self._tell_choice(route, flat)
            if self._counted:
                self._told.see(sizes)
            tensors = self._run(route, leaves, sizes, session)
        except GuardError as error:
            return self._refused(args, kwargs, error)
        export = self._exporter(flat)
        values = [
            export(tensors[number], known)
            if kind is TensorOutput
            else sizes[number]
            if kind is SizeOutput
            else known
            for kind, number, known in route.returned
        ]
        return self._build(values)

    def _refused(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: GuardError) -> Any:
        self._told.refuse(error)
        if self._on_violation is None:
            raise error
        return self._on_violation(args, kwargs, error)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """As a call, in a thread of the model's own, so that the event loop goes on meanwhile.

        At most usable cores / ``num_threads`` calls run at once; the others wait, in order. A call
        that is cancelled while it waits is never made; one that runs goes on to its end, and its
        result is dropped. Arguments must not be written to until then.
        """
        return await self.async_calls.run(self, args, kwargs)

    def warmup(
        self, sizes: Mapping[str, int] | Sequence[Mapping[str, int]] = ()
    ) -> tuple[float, ...]:
        """Call the model in this thread at each of ``sizes``, so that later calls are not the first:
        code and weights are read from the file, worker threads are there.

        Args:
            sizes: sizes of dims by name, ``{"batch": 8, "seq": 128}``, or several of these. A dim that
                is left out has the lowest size that is not 0. Values are drawn within the contract.

        Returns:
            seconds of each call; they are counted as any call is.

        Raises:
            UsageError: TC008, there is no such dim.
            GuardError: the sizes lie outside of the contract, or the model refuses drawn values.
        """
        session = self.session() if self.states else None
        if session is not None and self.manifest.generator:
            session.seed(0)
        return warm_up(self.contract, session or self, sizes)

    def session(self) -> Session:
        """A new state, as it was at export, to call the model on: see `Session`."""
        states = self._on_gpu.states(self._initial) if self._on_gpu is not None else None
        return Session(self, self._initial, states)

    def release_memory(self) -> int | None:
        """Give back what is kept for later calls: copies of inputs, memory of large results, and what
        the C library has not returned to the system yet. Later calls ask for it anew.

        On a GPU that is memory of the GPU as well: what its pool has to spare, of all models there.

        Returns:
            by how many bytes the process's resident memory became smaller, or on a GPU how many bytes
            are free there now that were not; None where the system does not tell.
        """
        workers = self._told.workers()
        if self._on_gpu is not None:
            self._calls.forget()  # a VM holds what its last call took
            return self._on_gpu.release(workers)
        return give_back(workers)

    @property
    def seen(self) -> list[dict[str, int]]:
        """The sizes that calls had, those of most calls first, as JSON takes it: ``[{"batch": 1, "seq":
        128, "calls": 12}]``. Empty unless the model was loaded with ``count_sizes``."""
        return self._told.seen()

    def _tell(self) -> None:
        """What is held at calls, and which binary was taken, where someone listens."""
        guards, variants = log("guards"), log("variants")
        if guards is not None:
            for line in conditions(self.contract):
                guards.info("%s: %s", self.path, line)
        several = len(self._routes) > 1
        self._choice = logging.getLogger("tcexport.variants") if several else None
        if variants is not None:
            built = ", ".join(target.name for target in self.manifest.targets)
            variants.info("%s: took %s of %s", self.path, self.target.name, built)
            if several:
                order = ", ".join(route.name for route in self._routes)
                variants.info("%s: variants in the order of trial: %s", self.path, order)

    def _tells_choices(self) -> bool:
        assert self._choice is not None
        return self._choice.isEnabledFor(logging.DEBUG)  # a line for each call

    def _tell_choice(self, route: Route, flat: Sequence[Any]) -> None:
        """Which variant serves a call, where someone listens for it."""
        listener = log("variants")
        if listener is not None:
            leaves = look(self.contract, flat)
            listener.debug("%s: %s", self.path, choice(self._routes, route, leaves))

    def _look_closer(self, flat: Sequence[Any]) -> tuple[Sequence[Any], Sizes]:
        """The leaves seen through DLPack, when they meet the contract; else the GuardError."""
        leaves = look(self.contract, flat, self._accepted)
        try:
            sizes = self._checks.seen(leaves)
        except Exception:  # as above: `explain` finds the reason
            sizes = None
        if sizes is None:
            refuse(self.contract, self._routes, leaves)
            raise InternalError(
                Diagnostic("TC601", f"{self.path}: a call was refused, and no guard says why")
            )
        return leaves, sizes

    def _exporter(self, flat: Sequence[Any]) -> Exporter:
        """How results go back to the library of the first tensor argument."""
        if self._first is None or isinstance(flat[self._first], np.ndarray):
            return to_numpy
        kind = type(flat[self._first])
        if kind not in self._exporters:
            self._exporters[kind] = exporter_of(flat[self._first])
            self._learn(kind)
        return self._exporters[kind]

    def _learn(self, kind: type) -> None:
        """The short way for calls with tensors of this class, where there is one."""
        if not self._plain or self._first is None or self.states or is_ending():
            return
        several = len(self._routes) > 1
        if self._gpu is not None or self._counted or not alike(self._routes):
            return
        if several and any(route.given for route in self._routes):
            return
        way = Way(
            self.contract,
            self._routes[-1].taken,
            [route.sized for route in self._routes],
            self._routes[-1].entry.results,
            self._routes[-1].given if len(self._routes) == 1 else (),
            self._calls.weights,
            self._calls.local,
            POOLS.here,
            self.num_threads,
            self._build,
            self._calls.stopped,
        )
        if kind is np.ndarray:
            short = for_numpy(way, self._checks.numpy)
        elif kind is getattr(sys.modules.get("torch"), "Tensor", None):
            short = for_torch(way, compile_torch_dispatch(self.contract, self._routes, kind), kind)
        else:
            return
        if short is not None:
            self._shorts[kind] = short

    def close_short_ways(self) -> None:
        """Let every call go the long way, where it can be held up. (`shutdown` calls this.)"""
        self._shorts = {}

    @property
    def device(self) -> str:
        """Where it runs: "cpu" or "cuda:0"."""
        return device_name(self._accepted)

    def synchronize(self) -> None:
        """Wait for the work that calls with tensors on a GPU have queued. Other calls have waited.

        Raises:
            InternalError: TC601, some of it failed.
        """
        if self._gpu is not None:
            self._gpu.device.synchronize()

    def gpu_memory(self) -> GpuMemory | None:
        """Bytes on the GPU; None for a model on the CPU."""
        return None if self._on_gpu is None else self._on_gpu.used()

    @property
    def metrics(self) -> Metrics:
        """Counts of calls, copies and refusals since the model was loaded."""
        return self._told.metrics()


def _signed_by(keys: TrustedKeys | None) -> Callable[[Path, memoryview], object] | None:
    """What `open_bundle` is to hold the bytes of a file against."""
    if keys is None:
        return None
    with LOADING:  # both import parts of the package cryptography when they need them
        trusted = key_list(keys)

    def accept(path: Path, data: memoryview) -> str:
        digest = hashlib.sha256(data).digest()
        with LOADING:
            return verify_signature(path, digest, trusted)

    return accept


def _limit_of_a_gpu(limit: int, chosen: Choice) -> UsageError:
    return UsageError(
        Diagnostic(
            "TC008",
            f"memory_limit={limit} is of the host's memory; {chosen.target.name} runs on "
            f"cuda:{chosen.gpu}",
            tries=("TCEXPORT_CUDA_POOL, the bytes that the GPU's pool keeps", "device='cpu'"),
        )
    )
