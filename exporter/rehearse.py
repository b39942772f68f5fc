"""Before the trace: what the model does beside computing, from calls of the model itself.

What a trace would lose or freeze is refused here, with the user's line, whether torch notices it or
not; what it keeps as it was at export is reported.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec.structs import replace as replaced
from torch.utils import _pytree as pytree

from ..artifacts.contract import PLAIN_TYPES
from ..artifacts.errors import Diagnostic, ExportError, Location, UsageError
from ..artifacts.logs import log
from ..lowering.draws import DRAWN
from .breaks import eager_failure
from .collect import collect_breaks, counted, merged
from .constants import constant_reads
from .eager import quietly, run_eager, same_numbers
from .examples import contiguous_clone
from .families import FAMILIES, tries_for
from .modes import mode_reads
from .observe import TORCHS, Event, Observed, observe
from .signature import Bound, forward_location
from .state import Change, preserved
from .trace import IGNORED
from .written import tensors_of


@dataclass(frozen=True)
class Rehearsal:
    """``errors`` refuse the export; ``notes`` go into its report; ``suspects`` are what a trace
    may have taken well, and what is to blame where its answers are wrong; ``possible`` count where
    the trace fails. ``states`` are the buffers that were written to. ``draws`` of torch's own random
    numbers refuse nothing: a bundle draws its own, unless the trace says that it cannot. ``caches``:
    calls change what no answer hangs on, which is in the notes."""

    errors: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    suspects: tuple[Diagnostic, ...]
    possible: tuple[Diagnostic, ...]
    states: tuple[str, ...] = ()
    draws: tuple[Diagnostic, ...] = ()
    caches: bool = False


AreCaches = Callable[[Sequence[Change]], bool]


def rehearse(module: torch.nn.Module, bound: Bound, are_caches: AreCaches) -> Rehearsal:
    """Call the model once under observation, and twice more with other random seeds.

    The further calls are left out where the first one is refused already: what it did to files or
    to the network is not done again.

    Args:
        are_caches: whether no answer hangs on what a call changes; asked where nothing else refuses
            the export.

    Raises:
        UsageError: TC009, the model fails on its own example.
    """
    leaves = [contiguous_clone(leaf) for _, leaf in bound.leaves]
    _, spec = pytree.tree_flatten((bound.args, bound.kwargs))
    inputs = {
        path: leaf
        for (path, _), leaf in zip(bound.leaves, leaves, strict=True)
        if isinstance(leaf, torch.Tensor)
    }

    def call() -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with torch.no_grad():
            return module(*args, **kwargs)

    try:
        observed = observe(module, call, inputs)
        if observed.remembers:  # the next call sees what is left of this one
            again = observe(module, call, inputs)
            observed = replace(
                observed,
                changes=(*observed.changes, *again.changes),
                writes=(*observed.writes, *again.writes),
            )
    except Exception as error:  # whatever the user's model raises
        message, where = eager_failure(error)
        raise UsageError(
            Diagnostic("TC009", f"the model failed on the example inputs: {message}", where)
        ) from error
    found = _judged(observed, module, inputs)
    found = replace(found, errors=(*found.errors, *_foreign_results(module, observed.outputs)))
    if observed.changes and found.errors:
        without = _judged(replace(observed, changes=()), module, inputs)
        foreign = any(True for _ in _foreign_results(module, observed.outputs))
        if (
            not without.errors
            and not foreign
            and are_caches([each for each, _ in observed.changes])
        ):
            caches = tuple(merged([_cache(*each) for each in observed.changes]))
            found = replace(without, notes=(*without.notes, *caches), caches=True)
    if found.errors:
        return found
    first: Sequence[Any] = observed.outputs
    if found.draws:  # held against each other with the numbers that a bundle would draw
        bound = replace(bound, draws=True)
        with preserved(module), quietly():
            first = run_eager(module, bound, [leaf for _, leaf in bound.leaves])
    errors = list(_other_answers(module, bound, first))
    to_blame = [each for each in found.suspects if each.code == "TC105"]
    if errors:
        return replace(found, errors=(*_not_drawn(found.draws), *to_blame) or tuple(errors))
    return replace(found, notes=(*found.notes, *map(_kept_identity, to_blame)))


def _kept_identity(suspect: Diagnostic) -> Diagnostic:
    """An ``id()`` or ``hash()`` that no answer in this process differs by: those of another may."""
    return Diagnostic(
        "TC106",
        suspect.message,
        suspect.location,
        tries=suspect.tries,
        severity="warning",
    )


def kept_draws(rehearsal: Rehearsal) -> tuple[Diagnostic, ...]:
    """What is said of the draws of a model whose trace holds them."""
    return tuple(
        Diagnostic(
            "TC123",
            f"{each.message.partition(' and ')[0].rstrip(',')}: a bundle draws its own, from the seed "
            "of a session",
            each.location,
            tries=(
                "session = tcexport.load(…).session(); session.seed(1234); session(…)",
                *each.tries,
            ),
            severity="note",
        )
        for each in rehearsal.draws
    )


def lost_draws(rehearsal: Rehearsal) -> tuple[Diagnostic, ...]:
    """What is to blame where a trace draws, and gives other numbers than the model."""
    what = "and the trace does not draw the same ones"
    return _blamed(rehearsal.draws, what, "remove draws that nothing comes of")


def _not_drawn(draws: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """What is to blame where a model differs from call to call beyond what a bundle draws."""
    return _blamed(draws, "and not only of kinds that a bundle draws", DRAWN)


def _blamed(draws: Sequence[Diagnostic], what: str, attempt: str) -> tuple[Diagnostic, ...]:
    message = f"torch draws random numbers, {what}"
    return tuple(replaced(each, message=message, tries=(attempt, *each.tries)) for each in draws)


def _foreign_results(module: torch.nn.Module, outputs: Sequence[Any]) -> Iterator[Diagnostic]:
    """Results that no bundle can give back: objects, and iterators, which compute after the call."""
    for value in outputs:
        if isinstance(value, Iterator):
            family = FAMILIES["generator"]
            yield Diagnostic(
                family.code,
                f"forward returns a {type(value).__name__}, which computes after the call",
                forward_location(module),
                tries=family.tries,
            )
        elif type(value) not in PLAIN_TYPES and not isinstance(value, (torch.Tensor, torch.Size)):
            kind = type(value).__name__
            yield Diagnostic(
                "TC005",
                f"forward returns an object of type {kind}, which a bundle cannot give back",
                forward_location(module),
                tries=("return tensors in tuples, lists, dicts or named tuples",),
            )


def refusal(
    error: ExportError, module: torch.nn.Module, bound: Bound, rehearsal: Rehearsal
) -> ExportError:
    """A failed trace with everything else that is to be mended: one run names all."""
    # Layers that are made in forward draw their weights, which says more than where the trace ends.
    # Of draws that are refused, the trace says which kind they are of.
    undrawn = {each.location for each in error.diagnostics if each.code == "TC101"}
    draws = [each for each in rehearsal.draws if each.location in undrawn]
    found = [*rehearsal.errors, *draws, *error.diagnostics, *rehearsal.possible]
    _tell(error.diagnostics)
    if any(each.code.startswith("TC1") for each in error.diagnostics):
        leaves = [contiguous_clone(leaf) for _, leaf in bound.leaves]
        _, spec = pytree.tree_flatten((bound.args, bound.kwargs))
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with preserved(module), _buffers_kept(module):
            breaks = collect_breaks(module, args, kwargs, IGNORED)
        _tell(breaks)
        found += breaks
    said = {(each.code, each.location) for each in found}
    named = [each for each in rehearsal.suspects if (each.code, each.location) in said]
    errors = merged([*named, *found])
    return ExportError((*errors, *_not_said(rehearsal.notes, errors)))


def _tell(breaks: Sequence[Diagnostic]) -> None:
    listener = log("graph_breaks")
    if listener is not None:
        for each in breaks:
            listener.info("%s: %s", each.location or "no line", each.message)


def _not_said(notes: Sequence[Diagnostic], errors: Sequence[Diagnostic]) -> list[Diagnostic]:
    said = {(each.code, each.location) for each in errors}
    return [each for each in notes if (each.code, each.location) not in said]


@contextlib.contextmanager
def _buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Every tensor of the model is afterwards what it was. (Dynamo runs under no dispatch mode.)"""
    tensors = list(tensors_of(module).values())
    saved = _copies(tensors)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in zip(tensors, saved, strict=True):
                if tensor.shape == before.shape and not torch.equal(tensor, before):
                    tensor.copy_(before)


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies in one piece of memory. It goes back to the system whole; many small ones, freed between
    what a trace keeps, would stay with the process: once more the weights, until it ends."""
    sizes = [_rounded_up(each) for each in tensors]
    memory = torch.empty(sum(sizes), dtype=torch.uint8)
    copies, start = [], 0
    for each, size in zip(tensors, sizes, strict=True):
        if size:
            held = memory[start : start + each.numel() * each.element_size()]
            copies.append(held.view(each.dtype).reshape(each.shape).copy_(each.detach()))
        else:
            copies.append(each.detach().clone())
        start += size
    return copies


def _rounded_up(tensor: torch.Tensor) -> int:
    """The bytes of a usual tensor, rounded up to where any dtype can begin; 0 of another kind."""
    usual = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not usual or tensor.is_quantized or not tensor.is_cpu:
        return 0
    return -(-tensor.numel() * tensor.element_size() // 64) * 64


def _judged(
    observed: Observed, module: torch.nn.Module, inputs: dict[str, torch.Tensor]
) -> Rehearsal:
    found: list[Diagnostic] = []
    suspects: list[Diagnostic] = []
    draws: list[Diagnostic] = []
    for event in observed.events:
        if event.family in ("random", "dropout") and event.what == TORCHS:
            draws.append(_event_diagnostic(event))
        else:
            doubtful = event.family in ("numpy", "identity")
            (suspects if doubtful else found).append(_event_diagnostic(event))
    buffers = dict(module.named_buffers())
    found += [_state_diagnostic(change, location, buffers) for change, location in observed.changes]
    for write in observed.writes:
        if write.name in inputs:
            found.append(input_write(write.name, write.location))
        elif write.name not in buffers:
            found.append(foreign_write(write.name, write.location, module))
    found += state_writes(
        [(each.name, each.location) for each in observed.writes if each.name in buffers]
    )
    found += shared_states(module, [write.name for write in observed.writes])
    found += mode_reads(observed.executed, module)
    found += constant_reads(observed.functions, [change.path for change, _ in observed.changes])
    refused = [each for each in found if each.severity == "error"]
    errors = merged(counted(refused))
    notes = merged([each for each in found if each.severity != "error"])
    possible = counted([_event_diagnostic(event) for event in observed.possible])
    return Rehearsal(
        tuple(errors),
        tuple(notes),
        tuple(merged(sorted(suspects, key=_of_tensors))),
        tuple(merged(possible)),
        tuple(write.name for write in observed.writes if write.name in buffers),
        tuple(merged(counted(draws))),
    )


def _event_diagnostic(event: Event) -> Diagnostic:
    family = FAMILIES[event.family]
    return Diagnostic(
        family.code,
        family.message.format(what=event.what),
        event.location,
        tries=tries_for(family, event.what),
        severity=family.severity,
    )


def _of_tensors(suspect: Diagnostic) -> bool:
    return suspect.message.startswith("Tensor.")


def input_write(path: str, location: Location | None) -> Diagnostic:
    return Diagnostic(
        "TC104",
        f"the model writes to its input {path}",
        location,
        tries=(f"write to a copy: {path}.clone()",),
    )


def state_writes(writes: Sequence[tuple[str, Location | None]]) -> Iterator[Diagnostic]:
    """A note for each line that writes to state: in a library, one line may write to many buffers."""
    names: dict[Location | None, list[str]] = {}
    for name, location in writes:
        names.setdefault(location, []).append(name)
    for location, written in names.items():
        which = ", ".join(written[:4])
        more = f" and {len(written) - 4} more" if len(written) > 4 else ""
        kept = "which is kept" if len(written) == 1 else "which are kept"
        yield Diagnostic(
            "TC122",
            f"the model writes to {which}{more}, {kept} from call to call, for each session",
            location,
            tries=("session = tcexport.load(…).session(); session(…)",),
            severity="note",
        )


def foreign_write(name: str, location: Location | None, module: torch.nn.Module) -> Diagnostic:
    """A write to a tensor that is no buffer."""
    what = "a tensor that is no buffer of it"
    if name in dict(module.named_parameters()):
        what = "a parameter"
    elif name in tensors_of(module):
        what = "a plain attribute"
    return Diagnostic(
        "TC103",
        f"the model writes to {name}, {what}, and the next call would not see it",
        location,
        tries=(
            f"register_buffer for {name}: a buffer that is written in place is state",
            f"take {name} as an input and return the new value",
        ),
    )


def shared_states(module: torch.nn.Module, written: Sequence[str]) -> Iterator[Diagnostic]:
    """States whose memory another tensor of the model sees, too: each would be on its own."""
    tensors = tensors_of(module)
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.layout is torch.strided and tensor.numel():
            names.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    for name in written:
        if name in tensors:
            others = names.get(tensors[name].untyped_storage()._cdata, [name])
            if others[0] == name and len(others) > 1:
                yield Diagnostic(
                    "TC103",
                    f"the model writes to {name}, whose memory {' and '.join(others[1:])} shares",
                    tries=("one buffer, and views of it made in forward",),
                )


def _state_diagnostic(
    change: Change, location: Location | None, buffers: Collection[str]
) -> Diagnostic:
    if change.kind == "random":
        family = FAMILIES["random"]
        what = {"random": "Python's random", "torch.random": "torch", "numpy.random": "numpy"}
        named = what.get(change.path, change.path)
        return Diagnostic(
            family.code, family.message.format(what=named), location, tries=family.tries
        )
    if change.kind in ("items", "elements"):
        message = f"a call changes what is in {change.path}, and the next call would not see it"
    elif change.kind == "state":
        message = f"a call moves {change.path} on, and the next call would not see it"
    else:
        shown = f" from {change.before} to {change.after}" if change.before != change.after else ""
        name = f"the global {change.path}" if change.kind == "global" else change.path
        message = f"a call changes {name}{shown}, and the next call would not see it"
    if change.kind == "elements":
        tries: tuple[str, ...] = (
            f"take what {change.path} holds as an input and return the new value",
            "return the value, and keep it outside",
        )
    elif change.path.removeprefix("self.") in buffers:
        tries = (
            f"write in place: {change.path}.copy_(…), add_(…); a buffer written so is state",
            f"take {change.path} as an input and return the new value",
        )
    elif change.before == "None" or change.before == "nothing":
        tries = (f"compute it in __init__ and only read {change.path} in forward",)
    else:
        tries = (f"take {change.path} as an input and return the new value",)
    return Diagnostic("TC103", message, location, tries=tries)


def _cache(change: Change, location: Location | None) -> Diagnostic:
    return Diagnostic(
        "TC124",
        f"a call changes {change.path}, a cache: no answer hangs on it, and a bundle keeps none",
        location,
        severity="note",
    )


def _other_answers(
    module: torch.nn.Module, bound: Bound, first: Sequence[Any]
) -> Iterator[Diagnostic]:
    """Two more calls, one after the other, under other seeds: nothing may show in the answers."""
    leaves = [leaf for _, leaf in bound.leaves]
    with preserved(module), quietly():
        for seed in (1, 2):
            reseed(seed)
            again = run_eager(module, bound, leaves)
            difference = differing(first, again)
            if difference is not None:
                position, error = difference
                yield Diagnostic(
                    "TC105",
                    f"two calls with the same inputs differ (output {position}, by {error:.3g})",
                    notes=(
                        "no line was seen to draw random numbers or to keep state: what makes the "
                        "difference is outside of Python",
                    ),
                )
                return


def reseed(seed: int) -> None:
    """Other numbers from Python's, torch's and numpy's random generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def differing(want: Sequence[Any], got: Sequence[Any]) -> tuple[int, float] | None:
    """The first of some flat outputs that is another, and by how much."""
    if len(want) != len(got):
        return min(len(want), len(got)), float("inf")
    for position, (a, b) in enumerate(zip(want, got, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            same, error = same_numbers(b, a)
        else:
            same, error = type(a) is type(b) and a == b, float("nan")
        if not same:
            return position, error
    return None
