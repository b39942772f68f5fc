"""What is asked for beside the model: dynamic dims with their ranges, and targets.

The same requests come as text from the command line and as values from Python; both become the same
data here. This module imports neither torch nor TVM, so that a typo is answered at once.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..artifacts.contract import MAX_SIZE, PLAIN_TYPES, Plain
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.gpus import this_driver
from ..artifacts.names import suggestions
from ..artifacts.platforms import CUDA_ARCHITECTURES
from ..lowering.targets import (
    CPU_TARGETS,
    DEFAULT_CPU_LEVELS,
    GpuTarget,
    Target,
    gpu_target,
)

DYNAMIC_FORMS = "NAME, NAME=LO..HI, NAME=LO..HI:STEP or NAME=LO.."
_RANGE = re.compile(r"(?P<lo>\d+)\.\.(?P<hi>\d+)?(?::(?P<step>\d+))?")


@dataclass(frozen=True)
class DimRequest:
    """A promised range of sizes: ``lo``, ``lo + step``, … up to ``hi`` (None: without end)."""

    lo: int
    hi: int | None = None
    step: int = 1

    def __str__(self) -> str:
        """The range as it is typed: ``1..512``, ``4..16:4``, ``1..``."""
        text = f"{self.lo}..{'' if self.hi is None else self.hi}"
        return f"{text}:{self.step}" if self.step != 1 else text


def is_dim_name(text: str) -> bool:
    """Whether a text can name a dim: an identifier that is no keyword and not ``_``."""
    return text.isidentifier() and not keyword.iskeyword(text) and text.strip("_") != ""


# --- dynamic --------------------------------------------------------------------------------------


def parse_dynamic(values: Sequence[str], option: str = "--dynamic") -> dict[str, DimRequest | None]:
    """Read ``--dynamic`` options, or those of another ``option`` of the same form: ``NAME``,
    ``NAME=LO..HI``, ``NAME=LO..HI:STEP``, ``NAME=LO..``.

    Each value may hold several, separated by commas. A name alone maps to None: the widest range
    that the trace proves.

    Raises:
        UsageError: TC008, a value has none of these forms, or one name has two ranges.
    """
    requests: list[tuple[str, DimRequest | None]] = []
    for value in values:
        for part in value.split(","):
            requests.append(_parse_dim(part.strip(), value, option))
    return _joined(requests)


def dynamic_from_python(dynamic: Mapping[str, Any]) -> dict[str, DimRequest | None]:
    """The same from Python: a dim's name → ``(lo, hi)``, ``(lo, hi, step)`` or None (the widest).

    ``hi`` may be None for a range without end.

    Raises:
        UsageError: TC008.
    """
    if not isinstance(dynamic, Mapping):
        names = [dynamic] if isinstance(dynamic, str) else list(dynamic or ())
        example = ", ".join(f'"{name}": None' for name in names) or '"seq": (1, 512)'
        raise _malformed(
            f"dynamic={dynamic!r} is not a dict from dims to ranges",
            tries=(f"dynamic={{{example}}}",),
        )
    return _joined([(name, _dim_from_python(name, value)) for name, value in dynamic.items()])


def _dim_from_python(name: Any, value: Any) -> DimRequest | None:
    shown = f"dynamic[{name!r}] = {value!r}"
    if not isinstance(name, str) or not is_dim_name(name):
        raise _malformed(f"dynamic: {name!r} is not the name of a dim")
    if value is None or isinstance(value, DimRequest):
        return value
    if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
        raise _malformed(
            f"{shown} is not (lo, hi), (lo, hi, step) or None",
            tries=(f'dynamic={{"{name}": (1, 512)}}', f'dynamic={{"{name}": None}}'),
        )
    bounds = [bound for position, bound in enumerate(value) if (position, bound) != (1, None)]
    if any(type(bound) is not int for bound in bounds):
        raise _malformed(f"{shown}: the bounds must be ints", tries=(f'"{name}": (1, 512)',))
    return _sensible(name, DimRequest(*value), shown)


def _parse_dim(part: str, value: str, option: str) -> tuple[str, DimRequest | None]:
    name, equals, span = part.partition("=")
    name = name.strip()
    where = f"{option} {value}" if part == value.strip() else f"{option} {value}: {part!r}"
    if not is_dim_name(name):
        if name.isdigit() or (equals and not name):
            note = "a range is written LO..HI, and several dims are separated by commas"
        else:
            note = f"{name!r} is not the name of a dim; it is read as {DYNAMIC_FORMS}"
        raise _malformed(f"cannot read {where}", notes=(note,), tries=(f"{option} seq=1..512",))
    if not equals:
        return name, None
    match = _RANGE.fullmatch(re.sub(r"\s", "", span))
    if match is None:
        raise _malformed(
            f"cannot read {where}",
            notes=(f"{span!r} is not a range; it is read as {DYNAMIC_FORMS}",),
            tries=(f"{option} {name}={_mended(span)}",),
        )
    hi = match["hi"]
    request = DimRequest(int(match["lo"]), None if hi is None else int(hi), int(match["step"] or 1))
    return name, _sensible(name, request, where, option)


def _mended(span: str) -> str:
    """A range in the right form from the numbers that were typed."""
    numbers = [int(number) for number in re.findall(r"\d+", span)[:2]]
    if len(numbers) == 2:
        return f"{min(numbers)}..{max(numbers)}"
    return f"1..{numbers[0]}" if numbers and numbers[0] > 0 else "1..512"


def _sensible(name: str, request: DimRequest, shown: str, option: str = "--dynamic") -> DimRequest:
    if request.step < 1:
        raise _malformed(f"{shown}: the step must be at least 1")
    if request.lo < 0 or max(request.lo, request.hi or 0, request.step) > MAX_SIZE:
        raise _malformed(f"{shown}: a size lies between 0 and 2**62")
    if request.hi is not None and request.hi < request.lo:
        raise _malformed(
            f"{shown}: the range is empty, {request.lo} is more than {request.hi}",
            tries=(f"{option} {name}={DimRequest(request.hi, request.lo, request.step)}",),
        )
    return request


def _joined(requests: list[tuple[str, DimRequest | None]]) -> dict[str, DimRequest | None]:
    dynamic: dict[str, DimRequest | None] = {}
    for name, request in requests:
        if name in dynamic and dynamic[name] != request:
            pair = " and ".join(
                "no range" if each is None else str(each) for each in (dynamic[name], request)
            )
            raise _malformed(f"dim {name} is asked for twice, with {pair}")
        dynamic[name] = request
    return dynamic


def _malformed(
    message: str, notes: tuple[str, ...] = (), tries: tuple[str, ...] = ()
) -> UsageError:
    return UsageError(Diagnostic("TC008", message, notes=notes, tries=tries))


# --- plain values ---------------------------------------------------------------------------------

_WORDS: dict[str, Plain] = {"none": None, "true": True, "false": False}


def parse_plain(path: str, text: str) -> Plain:
    """The value of ``--input path=text``: ``3``, ``-0.5``, ``true``, ``none``, ``'text'``.

    Raises:
        UsageError: TC008; a str must stand in quotes, so that ``1`` and ``'1'`` differ.
    """
    if text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    found: Any
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = ...  # which is no plain value
    if type(found) in PLAIN_TYPES:
        plain: Plain = found
        return plain
    raise _malformed(
        f"cannot read --input {path}={text}: {text} is no value",
        notes=("a value is 3, 0.5, true, none, or a str in quotes that the shell leaves there",),
        tries=(f"--input \"{path}='{text}'\"",),
    )


# --- targets --------------------------------------------------------------------------------------


def parse_targets(values: Sequence[str]) -> tuple[Target, ...]:
    """Read ``--target`` options: ``cpu`` (the default levels), ``cpu:LEVEL+LEVEL``,
    ``cuda:ARCHITECTURE+ARCHITECTURE+ptx``.

    The answer has each target once, the lowest CPU level first, the GPU (all that is asked for of
    it, in one) last.

    Raises:
        UsageError: TC506, a target that is not known or not built by this version.
    """
    if isinstance(values, str):
        values = (values,)
    names: list[str] = []
    for_gpu: list[str] = []
    for value in values:
        kind, colon, parts = value.strip().partition(":")
        if kind == "cuda":
            for_gpu += _architectures(value, parts)
            continue
        if kind != "cpu":
            raise _unknown_target(
                f"target {value!r} cannot be built by this version", value, _NOT_BUILT.get(kind)
            )
        for level in parts.split("+") if colon else DEFAULT_CPU_LEVELS:
            if level not in CPU_TARGETS:
                raise _unknown_target(f"target {value!r}: no CPU level {level!r}", level)
            names.append(level)
    if not names and not for_gpu:
        raise _unknown_target("no target given", "cpu")
    targets = {name: CPU_TARGETS[name] for name in names}
    gpu: tuple[GpuTarget, ...] = (gpu_target(for_gpu),) if for_gpu else ()
    by_level = sorted(targets.values(), key=lambda each: (each.level.platform, each.level.rank))
    return (*by_level, *gpu)


# Why not, of what TVM has a code generator for.
_NOT_BUILT = {
    "opencl": "TVM embeds OpenCL source, which a driver compiles at load, and the runtime library "
    "that travels in a bundle does not know OpenCL",
    "metal": "TVM embeds Metal source, which macOS compiles at load"
    ", and the runtime library that travels in a bundle does not know Metal",
    "webgpu": "TVM embeds WGSL source for a browser, where the runtime of a bundle cannot run",
    "rocm": "its code object needs AMD's linker, and the runtime library that travels in a bundle "
    "does not know ROCm",
    "vulkan": "TVM's package is built without it",
    "nvptx": "TVM's generator fails for dynamic sizes; cuda:ptx holds PTX",
}


def _architectures(value: str, parts: str) -> list[str]:
    """The architectures that a target ``cuda:…`` names, each known; ``ptx`` among them."""
    if not parts:
        raise _unknown_architecture(f"target {value!r} names no architecture")
    found: list[str] = []
    for name in parts.split("+"):
        if name == "native":
            found += _native(value)
        elif name == "ptx" or name in CUDA_ARCHITECTURES:
            found.append(name)
        else:
            raise _unknown_architecture(f"target {value!r}: no architecture {name!r}", name)
    return found


def _native(value: str) -> list[str]:
    """The architectures of the GPUs of this machine."""
    driver = this_driver()
    if not driver.gpus:
        why = driver.missing or f"the driver is there, but {driver.failed}"
        raise _unknown_architecture(f"target {value!r}: no GPU on this machine: {why}")
    names = sorted({"sm_{}{}".format(*gpu.capability) for gpu in driver.gpus})
    for name in names:
        if name not in CUDA_ARCHITECTURES:
            raise _unknown_architecture(
                f"target {value!r}: the compiler makes no machine code for {name}"
            )
    return names


def _unknown_architecture(message: str, name: str = "") -> UsageError:
    plain = re.sub(r"^(?:compute_|sm)?_?(\d+)[af]?$", r"sm_\1", name)
    close = [plain] if plain in CUDA_ARCHITECTURES else suggestions(name, CUDA_ARCHITECTURES)[:1]
    notes = [f"architectures: {', '.join(CUDA_ARCHITECTURES)}; ptx, for devices to come; native"]
    if re.fullmatch(r"sm_\d+[af]", name):
        notes.append(f"no kernel of tcexport uses what {name} has beyond {plain}")
    tries = [f"--target cuda:{each}" for each in close] or ["--target cuda:sm_80+sm_90+ptx"]
    return UsageError(Diagnostic("TC506", message, notes=tuple(notes), tries=tuple(tries)))


def _unknown_target(message: str, value: str, why: str | None = None) -> UsageError:
    close = suggestions(value.removeprefix("cpu:"), CPU_TARGETS)
    tries = tuple(f"--target cpu:{name}" for name in close[:1]) or ("--target cpu",)
    listed = ", ".join(["cpu", *(f"cpu:{name}" for name in CPU_TARGETS), "cuda:sm_80+ptx"])
    notes = [why] if why is not None else []
    notes.append(f"targets: {listed}; levels and architectures are joined with +")
    return UsageError(Diagnostic("TC506", message, notes=tuple(notes), tries=tries))
