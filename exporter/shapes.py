"""trtexec's way to say sizes: `--minShapes`, `--optShapes` and `--maxShapes`.

The smallest and the largest shape of each input are a range for each dim that they differ in, as
`--dynamic NAME=LO..HI`; the optimal shape is a variant at these sizes, as `--profile opt:…`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import ExprError, evaluate
from ..artifacts.names import suggestions
from ..artifacts.prove import Span
from .axes import Axes, parse_axis
from .options import DimRequest
from .profiles import Profile

Shapes = dict[str, tuple[int, ...]]
_INPUT = re.compile(r"(?P<path>[^:]+):(?P<sizes>\d+(?:x\d+)*)")
_KINDS = ("--minShapes", "--optShapes", "--maxShapes")


def parse_shapes(option: str, text: str) -> Shapes:
    """Read ``input_ids:1x128,mask:1x128``.

    Raises:
        UsageError: TC008.
    """
    found: Shapes = {}
    for part in text.split(","):
        match = _INPUT.fullmatch(part.strip())
        if match is None or match["path"] in found:
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"cannot read {option} {text}: {part!r}",
                    notes=("it is read as INPUT:SIZExSIZE…, each input once",),
                    tries=(f"{option} input_ids:1x128,mask:1x128",),
                )
            )
        found[match["path"]] = tuple(int(size) for size in match["sizes"].split("x"))
    return found


def dims_of_shapes(
    least: Shapes, best: Shapes, most: Shapes, axes: Axes, example: Mapping[str, Sequence[int]]
) -> tuple[dict[str, DimRequest], Profile | None]:
    """The ranges and the variant that shapes mean.

    Args:
        least, best, most: what the three options say; least and most name the same inputs.
        axes: the names of the axes of each tensor of the example.
        example: its shapes.

    Raises:
        UsageError: TC008, what cannot be said in dims: an axis that varies without a name, sizes that
            contradict each other, or an end without the other; TC006, an input that is not there.
    """
    if bool(least) != bool(most) or least.keys() != most.keys():
        raise _unfit("--minShapes and --maxShapes must name the same inputs")
    sizes: list[dict[str, int]] = [{}, {}, {}]
    for number, shapes in enumerate((least, best, most)):
        for path, shape in shapes.items():
            _read(_KINDS[number], path, shape, axes, example, sizes[number])
        for path, shape in shapes.items():
            _check_expressions(_KINDS[number], path, shape, axes, sizes[number])
    low, at, high = sizes
    for name, size in low.items():
        if size > high[name]:
            raise _unfit(f"{name} is {size} in --minShapes and {high[name]} in --maxShapes")
    for name, size in at.items():
        if name in low and not low[name] <= size <= high[name]:
            raise _unfit(f"{name} is {size} in --optShapes, outside of {low[name]}..{high[name]}")
    dynamic = {name: DimRequest(low[name], high[name]) for name in low if low[name] != high[name]}
    fixed = {name: low[name] for name in low if low[name] == high[name]}
    for path, names in axes.items():
        for size, axis in zip(example[path], names, strict=True):
            if isinstance(axis, str) and fixed.get(axis, size) != size:
                raise _unfit(f"{axis} is fixed at {fixed[axis]}, and {size} in the example")
    varying = {name: Span(size, size) for name, size in at.items() if name not in fixed}
    return dynamic, Profile("opt", varying) if varying else None


def _read(
    option: str,
    path: str,
    shape: Sequence[int],
    axes: Axes,
    example: Mapping[str, Sequence[int]],
    sizes: dict[str, int],
) -> None:
    """Put the sizes of the dims that an input names into ``sizes``."""
    if path not in axes:
        raise UsageError(
            Diagnostic(
                "TC006",
                f"{option}: there is no input {path}",
                notes=(f"inputs: {', '.join(axes)}",),
                tries=tuple(f"{option} {each}:…" for each in suggestions(path, axes)[:1]),
            )
        )
    names = axes[path]
    if len(names) != len(shape):
        raise _unfit(f"{option}: {path} has {len(names)} axes, not {len(shape)}")
    for axis, (name, size) in enumerate(zip(names, shape, strict=True)):
        if not isinstance(name, str):
            if size != example[path][axis]:
                raise _unfit(
                    f"{option}: axis {axis} of {path} has no name and is "
                    f"{example[path][axis]} in the example, not {size}",
                    f"--axes {path}={','.join(str(each or '_') for each in names)} with a name there",
                )
            continue
        if name.isidentifier() and sizes.setdefault(name, size) != size:
            raise _unfit(f"{option}: {name} is {sizes[name]} and {size}")


def _check_expressions(
    option: str, path: str, shape: Sequence[int], axes: Axes, sizes: Mapping[str, int]
) -> None:
    for name, size in zip(axes[path], shape, strict=True):
        if not isinstance(name, str) or name.isidentifier():
            continue
        try:
            value = evaluate(parse_axis(name), sizes)
        except (ExprError, KeyError):
            raise _unfit(f"{option}: {path} has an axis {name}, whose dims no axis gives") from None
        if value != size:
            raise _unfit(f"{option}: {name} of {path} is {value}, not {size}")


def _unfit(message: str, *tries: str) -> UsageError:
    return UsageError(
        Diagnostic("TC008", message, tries=tries or ("--dynamic NAME=LO..HI, --profile NAME:…",))
    )
