"""What differs between two bundles, by section: contract, code, versions, members, weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ..artifacts.container import Bundle
from ..artifacts.expr import ARITY, render
from ..artifacts.manifest import WEIGHTS_NAME, encode
from ..artifacts.update import read_weights_of
from ..artifacts.weights import Weight, same_bits
from .tables import shape_text

# Which section each part of the manifest is told in: all of its fields, but the members, which are
# compared by themselves.
_SECTIONS = {
    "format_version": "bundle",
    "model": "bundle",
    "contract": "contract",
    "states": "contract",
    "generator": "contract",
    "entry": "code",
    "targets": "code",
    "variants": "code",
    "memory": "code",
    "runtimes": "versions",
    "provenance": "versions",
    "external_weights": "members",
    "parameters": "weights",
}
_ORDER = ("bundle", "contract", "code", "versions", "members", "weights")
# The fields that hold an expression over dims, and those that hold a list of them. Any other list
# may begin with a name that is an operator's, too: a weight called `max`.
_EXPRESSION = {"expr", "lo", "hi", "start", "stop", "size", "value"}
_EXPRESSIONS = {"sizes", "shape", "memory"}


@dataclass(frozen=True)
class Difference:
    """``what`` differs, and how it is in the two files; None: it is not there."""

    section: str
    what: str
    first: str | None
    second: str | None


def differences(one: Bundle, two: Bundle) -> Iterator[Difference]:
    """What differs, by section; nothing where the two files have the same bytes.

    The form of a file follows from its manifest and its members, and the manifest has their
    digests: so nothing but what is compared here can differ. Entries that only stand in another
    order are one difference.

    Raises:
        BundleError: TC401, the weights are damaged.
    """
    facts = [_facts(msgspec.to_builtins(each.manifest)) for each in (one, two)]
    found = [*_compared(facts[0], facts[1]), *_members(one, two)]
    found.sort(key=lambda each: _ORDER.index(each.section))
    if not found and encode(one.manifest) != encode(two.manifest):
        found = [Difference("bundle", "the order of entries in the manifest", "one", "another")]
    yield from found


def _compared(
    one: Mapping[tuple[str, str], str], two: Mapping[tuple[str, str], str]
) -> Iterator[Difference]:
    for section, what in sorted({**one, **two}):
        first, second = one.get((section, what)), two.get((section, what))
        if first != second:
            yield Difference(section, what, first, second)


def _facts(manifest: Any) -> dict[tuple[str, str], str]:
    """A manifest without its members as text by section and path, each value by itself."""
    facts: dict[tuple[str, str], str] = {}
    for field, data in manifest.items():
        if field == "members":
            continue
        section = _SECTIONS[field]
        for path, value in _flat(data, field, field in _EXPRESSIONS):
            facts[section, path.removeprefix("contract.").removeprefix("provenance.")] = value
    return facts


def _flat(data: Any, path: str, several: bool = False) -> Iterator[tuple[str, str]]:
    """``several``: the items of ``data`` are expressions, where they are no numbers and names."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            if key in _EXPRESSION and _is_operation(value):
                yield f"{path}.{key}", render(_tuples(value))
            else:
                yield from _flat(value, f"{path}.{key}", key in _EXPRESSIONS)
    elif isinstance(data, (list, tuple)) and data:
        seen: dict[str, int] = {}
        for number, value in enumerate(data):
            name = _name(value, number)
            seen[name] = seen.get(name, 0) + 1
            again = f" #{seen[name]}" if seen[name] > 1 else ""
            place = f"{path}[{name}{again}]"
            if several and _is_operation(value):
                yield place, render(_tuples(value))
            else:
                yield from _flat(value, place)
    else:
        yield path, json.dumps(data, ensure_ascii=False)


def _is_operation(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and value[0] in ARITY


def _name(value: Any, number: int) -> str:
    """What tells an item of a list apart: its own name where it has one, so that one that is put in
    between does not make all that follow differ."""
    if isinstance(value, dict):
        if "expr" in value:
            return render(_tuples(value["expr"]))
        for key in ("name", "path"):
            if key in value and value.get("node") is None:
                return str(value[key])
    return str(number)


def _tuples(data: Any) -> Any:
    return tuple(_tuples(each) for each in data) if isinstance(data, (list, tuple)) else data


def _members(one: Bundle, two: Bundle) -> Iterator[Difference]:
    listed = [{each.name: each for each in bundle.manifest.members} for bundle in (one, two)]
    for bundle, members in zip((one, two), listed, strict=True):
        if bundle.manifest.external_weights is not None:
            members[WEIGHTS_NAME] = bundle.manifest.external_weights
    for name in sorted({**listed[0], **listed[1]}):
        first, second = listed[0].get(name), listed[1].get(name)
        if first is not None and second is not None and first.sha256 == second.sha256:
            continue
        if name == WEIGHTS_NAME and first is not None and second is not None:
            yield from _weights(one, two)
            continue
        section = "code" if name.startswith("targets/") else "members"
        texts = [
            None if each is None else f"{each.size} bytes, sha256 {each.sha256[:16]}"
            for each in (first, second)
        ]
        yield Difference(section, name, *texts)


def _weights(one: Bundle, two: Bundle) -> Iterator[Difference]:
    found = [read_weights_of(bundle) for bundle in (one, two)]
    before = len(found[0])
    told = False
    for name in {**found[0], **found[1]}:
        first, second = found[0].get(name), found[1].get(name)
        if first is not None and second is not None and same_bits(first, second):
            continue
        told = True
        texts = [None if each is None else _tensor_text(each) for each in (first, second)]
        if first is not None and second is not None and texts[0] == texts[1]:
            bits = [np.ascontiguousarray(each.data).reshape(-1) for each in (first, second)]
            count = int((_bits(bits[0]) != _bits(bits[1])).sum())
            texts[1] = f"the same, {count} of {bits[0].size} elements differ{_most(first, second)}"
        yield Difference("weights", name, *texts)
    if not told:
        yield Difference("weights", WEIGHTS_NAME, f"{before} tensors", "the same in another order")


def _tensor_text(weight: Weight) -> str:
    return f"{weight.dtype} {shape_text(weight.data.shape)}"


def _bits(array: np.ndarray) -> np.ndarray:
    """Elements compared by their bits: a NaN is itself, and 0.0 is not -0.0."""
    return array.view(np.dtype((np.void, array.itemsize)))


def _most(first: Weight, second: Weight) -> str:
    if first.dtype not in ("float16", "float32", "float64"):
        return ""
    with np.errstate(invalid="ignore"):
        apart = np.abs(first.data.astype(np.float64) - second.data.astype(np.float64))
    numbers = apart[~np.isnan(apart)]
    return f", by {numbers.max():.3g} at most" if numbers.size else ""
