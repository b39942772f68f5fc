"""Variants as they are asked for: which sizes get code of their own, beside the general code.

`--specialize`, `--profile` and trtexec's shapes become the same data here. This module imports neither
torch nor TVM, so that a typo is answered at once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..artifacts.contract import MAX_SIZE
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.manifest import GENERAL, MAX_VARIANTS
from ..artifacts.prove import Span
from .limits import DEFAULT_LIMIT
from .options import DimRequest, dynamic_from_python, is_dim_name, parse_dynamic

SPECIALIZE_FORMS = "NAME=SIZE,SIZE,… or NAME=LO..HI[:STEP]"
_SPAN = re.compile(r"(?P<lo>\d+)(?:\.\.(?P<hi>\d+)(?::(?P<step>\d+))?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Profile:
    """One variant that is asked for: the sizes of some dims; the others keep their range."""

    name: str
    spans: Mapping[str, Span]


@dataclass(frozen=True)
class Variants:
    """All that is asked for beside the general code; ``limit``: how many variants there may be;
    ``cover``: a dim whose range is traced arm by arm; ``keep``: also those that are slower than the
    general code."""

    profiles: tuple[Profile, ...] = ()
    limit: int = DEFAULT_LIMIT
    cover: tuple[str, DimRequest] | None = None
    keep: bool = False


Lists = dict[str, list[Span]]


def parse_profiles(specialize: Sequence[str], profiles: Sequence[str]) -> tuple[Profile, ...]:
    """Read `--specialize` and `--profile` options.

    All `--specialize` together give the product of what they say of each dim: ``seq=128,256`` and
    ``batch=1`` are two variants. A profile stands for itself: ``small:batch=1,seq=1..128``.

    Raises:
        UsageError: TC008, a value has not the form; or something is asked for twice.
    """
    wanted: Lists = {}
    for value in specialize:
        _merge(
            wanted, _parse_lists(value, f"--specialize {value}", SPECIALIZE_FORMS), "--specialize"
        )
    found = _product(wanted)
    for value in profiles:
        name, colon, text = value.partition(":")
        forms = "NAME:DIM=SIZE,DIM=LO..HI,…"
        if not colon or _NAME.fullmatch(name.strip()) is None or ".." in name:
            raise _malformed(f"cannot read --profile {value}", forms, "--profile small:batch=1")
        found += _product(_parse_lists(text, f"--profile {value}", forms), name.strip())
    return _distinct(found)


def profiles_from_python(
    specialize: Mapping[str, Any] | None, profiles: Mapping[str, Any] | None
) -> tuple[Profile, ...]:
    """The same from Python: ``specialize={"seq": [128, 256], "batch": 1}`` and
    ``profiles={"small": {"batch": 1, "seq": (1, 128)}}``; a size, a range or a list of them.

    Raises:
        UsageError: TC008.
    """
    found = _product(_lists_from_python(specialize or {}, "specialize"))
    if not isinstance(profiles or {}, Mapping):
        raise _malformed(f"profiles={profiles!r:.80}", "a dict from names to dicts of sizes")
    for name, sizes in (profiles or {}).items():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise _malformed(f"profiles: {name!r:.80} is not the name of a variant", "a name")
        found += _product(_lists_from_python(sizes, f"profiles[{name!r}]"), name)
    return _distinct(found)


def parse_cover(values: Sequence[str]) -> tuple[str, DimRequest] | None:
    """Read `--cover NAME=LO..HI`.

    Raises:
        UsageError: TC008, not of this form, without an end, or more than one dim.
    """
    return _one_dim(parse_dynamic(values, "--cover"), "--cover") if values else None


def cover_from_python(cover: Mapping[str, Any] | None) -> tuple[str, DimRequest] | None:
    """The same from Python: ``cover={"seq": (1, 4096)}``."""
    return _one_dim(dynamic_from_python(cover), "cover") if cover else None


def _one_dim(found: Mapping[str, DimRequest | None], shown: str) -> tuple[str, DimRequest]:
    if len(found) != 1:
        raise _malformed(f"{shown} names {', '.join(found)}: it takes one dim", "NAME=LO..HI")
    ((name, request),) = found.items()
    if request is None or request.hi is None:
        raise _malformed(f"{shown} {name}: the range needs both ends", "NAME=LO..HI")
    return name, request


def _parse_lists(text: str, shown: str, forms: str) -> Lists:
    """``batch=1,seq=128,256``: a part without ``=`` is one more size of the dim before it."""
    lists: Lists = {}
    dim = ""
    for part in text.split(","):
        name, equals, size = part.rpartition("=")
        if equals:
            dim = name.strip()
            if not is_dim_name(dim):
                raise _malformed(f"cannot read {shown}: {dim!r} is not the name of a dim", forms)
            if dim in lists:
                raise _malformed(f"{shown} names {dim} twice", forms)
            lists[dim] = []
        match = _SPAN.fullmatch(re.sub(r"\s", "", size if equals else part))
        if not dim or match is None:
            raise _malformed(f"cannot read {shown}: {part.strip()!r}", forms)
        lo = int(match["lo"])
        hi = lo if match["hi"] is None else int(match["hi"])
        lists[dim].append(_sensible(Span(lo, hi, int(match["step"] or 1)), shown))
    return lists


def _lists_from_python(sizes: Any, shown: str) -> Lists:
    if not isinstance(sizes, Mapping):
        raise _malformed(f"{shown}={sizes!r:.80} is not a dict", '{"seq": [128, 256], "batch": 1}')
    lists: Lists = {}
    for dim, value in sizes.items():
        if not isinstance(dim, str) or not is_dim_name(dim):
            raise _malformed(f"{shown}: {dim!r:.80} is not the name of a dim", "a dim's name")
        lists[dim] = [
            _span_from_python(each, f"{shown}[{dim!r}]")
            for each in (value if isinstance(value, list) else [value])
        ]
        if not lists[dim]:
            raise _malformed(f"{shown}[{dim!r}] is empty", "a size, or several")
    return lists


def _span_from_python(value: Any, shown: str) -> Span:
    if type(value) is int:
        return _sensible(Span(value, value), shown)
    numbers = list(value) if isinstance(value, tuple) else []
    if len(numbers) not in (2, 3) or any(type(number) is not int for number in numbers):
        raise _malformed(f"{shown}: {value!r:.80}", "a size, (lo, hi), or (lo, hi, step)")
    return _sensible(Span(*numbers), shown)


def _sensible(span: Span, shown: str) -> Span:
    assert span.hi is not None
    if span.step < 1 or not 0 <= span.lo <= span.hi <= MAX_SIZE:
        raise _malformed(f"{shown}: {span} holds no size", "LO..HI with LO <= HI")
    return Span(span.lo, span.hi - (span.hi - span.lo) % span.step, span.step)


def _merge(wanted: Lists, more: Lists, option: str) -> None:
    for dim, spans in more.items():
        wanted.setdefault(dim, []).extend(spans)
        texts = [span_text(span) for span in wanted[dim]]
        for text in texts:
            if texts.count(text) > 1:
                raise _malformed(f"{option} asks for {dim}={text} twice", SPECIALIZE_FORMS)


def _product(lists: Lists, name: str = "") -> list[Profile]:
    if not lists:
        return []
    points = [dict(zip(lists, spans, strict=True)) for spans in itertools.product(*lists.values())]
    if len(points) > MAX_VARIANTS:
        raise _malformed(f"{len(points)} variants are asked for", f"at most {MAX_VARIANTS}")
    if name and len(points) == 1:
        return [Profile(name, points[0])]
    prefix = f"{name}:" if name else ""
    return [Profile(f"{prefix}{spans_text(point)}", point) for point in points]


def _distinct(found: list[Profile]) -> tuple[Profile, ...]:
    names: dict[str, Profile] = {}
    sizes: dict[str, Profile] = {}
    for profile in found:
        text = spans_text(dict(sorted(profile.spans.items())))
        if profile.name == GENERAL:
            raise _malformed("a variant is called general", "that name is the general code's")
        if profile.name in names or text in sizes:
            raise _malformed(f"the variant {text} is asked for twice", "each one once")
        names[profile.name] = sizes[text] = profile
    return tuple(found)


def span_text(span: Span) -> str:
    """A size or a range as it is typed: ``128``, ``1..128``, ``8..64:8``."""
    return str(span.lo) if span.lo == span.hi else str(span)


def spans_text(spans: Mapping[str, Span]) -> str:
    """``batch=1,seq=1..128``, which is what a variant is called."""
    return ",".join(f"{dim}={span_text(span)}" for dim, span in spans.items())


def _malformed(message: str, forms: str, attempt: str = "--specialize seq=128,256") -> UsageError:
    tries = (attempt,) if attempt.partition(" ")[0] in message else ()
    return UsageError(Diagnostic("TC008", message, notes=(f"needed: {forms}",), tries=tries))
