"""The variants of a loaded bundle: how each is called, which one takes a call, and why not another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ..artifacts.contract import (
    Contract,
    Fixed,
    SizeOutput,
    TensorInput,
    TensorOutput,
)
from ..artifacts.errors import Diagnostic, GuardError, UsageError
from ..artifacts.manifest import Entry, Manifest, Target, contract_of, routes
from ..artifacts.names import suggestions
from ..artifacts.parts import box_of
from ..artifacts.prove import bounds
from .explain import explain
from .guards import Part
from .results import GivenResult, given_results


@dataclass(frozen=True)
class Route(Part):
    """One variant, ready to be called.

    Attributes:
        contract, sizes: of `Part`: what a call must meet to come here, and what the check answers.
        number: its place among the variants.
        sized: how many of ``sizes`` the compiled function takes.
        taken: the tensor inputs that it takes: index, dtype, and whether one may have no elements.
        given: the results for which memory is given.
        returned: where each output comes from: a tensor by its number, with its dtype; a size by its
            place in ``sizes``; or a value.
    """

    number: int
    name: str
    entry: Entry
    sized: int
    taken: tuple[tuple[int, str, bool], ...]
    given: tuple[GivenResult, ...]
    returned: tuple[tuple[type, int, Any], ...]


def routes_of(
    manifest: Manifest, target: Target, counted: Sequence[str] = (), *, given: bool = True
) -> tuple[Route, ...]:
    """The variants of a target's binary, in the order in which they are tried.

    Args:
        counted: dims whose values the checks answer besides, last of all.
        given: whether memory may be given for results.
    """
    return tuple(
        _route(number, each.name, each.entry, contract_of(manifest, each), counted, given)
        for number, each in enumerate(routes(manifest, target))
    )


def alike(parts: Sequence[Route]) -> bool:
    """Whether all variants take and give tensors in the same places, so that one way of calling
    serves them all."""
    return len({(part.taken, part.entry.results, part.returned) for part in parts}) == 1


def _route(
    number: int,
    name: str,
    entry: Entry,
    contract: Contract,
    counted: Sequence[str],
    may_give: bool,
) -> Route:
    sizes = [*entry.sizes]
    sizes += [each.value for each in contract.outputs if isinstance(each, SizeOutput)]
    given = given_results(contract, entry, sizes) if may_give else ()
    return Route(
        contract=contract,
        sizes=(*sizes, *counted),
        number=number,
        name=name,
        entry=entry,
        sized=len(entry.sizes),
        taken=tuple(
            (index, item.dtype, _may_be_empty(contract, item))
            for index in entry.inputs
            if isinstance(item := contract.inputs[index], TensorInput)
        ),
        given=given,
        returned=tuple(_returned(contract, len(entry.sizes))),
    )


def _may_be_empty(contract: Contract, item: TensorInput) -> bool:
    box = box_of(contract.dims)
    return any(bounds(size, box)[0] <= 0 for size in item.shape)


def _returned(contract: Contract, first: int) -> Iterator[tuple[type, int, Any]]:
    """The sizes among the outputs stand behind the ``first`` that the compiled function takes."""
    places = itertools.count(first)
    for output in contract.outputs:
        if isinstance(output, TensorOutput):
            yield TensorOutput, output.result, output.dtype
        elif isinstance(output, SizeOutput):
            yield SizeOutput, next(places), None
        else:
            yield Fixed, 0, output.value


def refuse(contract: Contract, parts: Sequence[Route], leaves: Sequence[Any]) -> None:
    """Raise the GuardError of a call that no variant takes.

    Args:
        contract: the bundle's.
        leaves: what `explain.look` answered.

    Raises:
        GuardError: TC304 to TC309, the first condition of the bundle that is not met; TC320, all are,
            and each variant needs another thing. Returns when one of them takes the call.
    """
    explain(contract, leaves)
    reasons: dict[str, GuardError] = {}
    for part in parts:
        error = reason(part, leaves)
        if error is None:
            return
        reasons[part.name] = error
    if parts[-1].contract == contract:
        raise reasons[parts[-1].name]
    _refuse_all(reasons)


def _refuse_all(reasons: dict[str, GuardError]) -> NoReturn:
    first = next(iter(reasons.values()))
    needs = "; or ".join(dict.fromkeys(error.needs for error in reasons.values()))
    place = first.argument if first.axis is None else f"{first.argument} axis {first.axis}"
    notes = [f"variant {name}: {_told(error)}" for name, error in reasons.items()]
    raise GuardError(
        Diagnostic(
            "TC320",
            f"{place}: got {first.got}, which no variant takes: it needs {needs}",
            notes=tuple(notes),
        ),
        argument=first.argument,
        axis=first.axis,
        got=first.got,
        needs=needs,
        guard=f"{place}: {needs}",
    )


def _told(error: GuardError) -> str:
    """What a call does not meet, and where that comes from."""
    found = error.diagnostics[0]
    return "; ".join((found.message, *(note for note in found.notes if note.startswith("from: "))))


def reason(part: Route, leaves: Sequence[Any]) -> GuardError | None:
    """Why a variant does not take a call; None where it does."""
    try:
        explain(part.contract, leaves, part.sizes)
    except GuardError as error:
        return error
    return None


def choice(parts: Sequence[Route], taken: Route, leaves: Sequence[Any]) -> str:
    """Which variant takes a call, and why none before it does, in one line."""
    told = []
    for part in parts[: taken.number]:
        error = reason(part, leaves)
        if error is not None:
            told.append(f"not {part.name}: {error.diagnostics[0].message}")
    return "; ".join((f"took {taken.name}", *told))


def pinned(manifest: Manifest, name: str, path: Path) -> Manifest:
    """The bundle with one of its variants as all that there is.

    Raises:
        UsageError: TC006, there is no such variant.
    """
    for number, each in enumerate(manifest.variants):
        if each.name == name:
            return msgspec.structs.replace(
                manifest,
                contract=contract_of(manifest, each),
                entry=each.entry,
                targets=tuple(
                    msgspec.structs.replace(target, entries=target.entries[number : number + 1])
                    for target in manifest.targets
                    if target.entry is None
                ),
                variants=(msgspec.structs.replace(each, contract=None),),
            )
    names = [each.name for each in manifest.variants]
    raise UsageError(
        Diagnostic(
            "TC006",
            f"variant={name!r:.80}: {path} has no such variant",
            notes=(f"variants: {', '.join(names) or 'none'}",),
            tries=tuple(f"variant={each!r}" for each in suggestions(name, names)[:1]),
        )
    )
