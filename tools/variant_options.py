"""The options about variants: sizes that get code of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..exporter.limits import DEFAULT_LIMIT

if TYPE_CHECKING:
    from ..exporter.options import DimRequest
    from ..exporter.profiles import Variants
    from ..exporter.source import Source

    Dynamic = dict[str, DimRequest | None]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class AskedVariants:
    """What the command line says of variants, not looked into yet."""

    specialize: tuple[str, ...]
    profiles: tuple[str, ...]
    limit: int
    cover: tuple[str, ...]
    keep: bool
    shapes: tuple[str | None, str | None, str | None]

    @property
    def given(self) -> bool:
        """Whether any of the options was typed, but the limit."""
        return any((self.specialize, self.profiles, self.cover, self.keep, *self.shapes))

    def typed(self, targets: Sequence[str]) -> Variants:
        """The same as data, and the targets looked at: a typo is answered before torch is imported.

        Raises:
            UsageError: TC008, TC506.
        """
        from ..exporter.options import parse_targets
        from ..exporter.profiles import Variants, parse_cover, parse_profiles

        parse_targets(targets)
        for option, text in zip(_SHAPES, self.shapes, strict=True):
            if text is not None:
                from ..exporter.shapes import parse_shapes

                parse_shapes(option, text)
        profiles = parse_profiles(self.specialize, self.profiles)
        return Variants(profiles, self.limit, parse_cover(self.cover), self.keep)

    def of_source(
        self, source: Source, dynamic: Dynamic, variants: Variants
    ) -> tuple[Dynamic, Variants]:
        """With what `--minShapes`, `--optShapes` and `--maxShapes` mean for the axes of a source.

        Raises:
            UsageError: TC008, they cannot be said in dims, or contradict other options; TC006, a dim
                that is not there.
        """
        dynamic, variants = self._with_shapes(source, dynamic, variants)
        if variants.cover is not None:
            from ..exporter.axes import check_dynamic_names

            check_dynamic_names(dict([variants.cover]), source.axes)
        return dynamic, variants

    def _with_shapes(
        self, source: Source, dynamic: Dynamic, variants: Variants
    ) -> tuple[Dynamic, Variants]:
        from ..artifacts.errors import Diagnostic, UsageError
        from ..exporter.shapes import dims_of_shapes, parse_shapes
        from ..exporter.signature import bind

        if self.shapes == (None, None, None):
            return dynamic, variants
        least, best, most = (
            {} if text is None else parse_shapes(option, text)
            for option, text in zip(_SHAPES, self.shapes, strict=True)
        )
        tensors = bind(source.module, source.args, source.kwargs).tensors
        example = {path: tuple(tensor.shape) for path, tensor in tensors.items()}
        ranges, profile = dims_of_shapes(least, best, most, source.axes, example)
        twice = ranges.keys() & dynamic.keys()
        if twice:
            name = min(twice)
            raise UsageError(
                Diagnostic(
                    "TC008", f"{name} has a range in --dynamic and in --minShapes, --maxShapes"
                )
            )
        if profile is not None:
            variants = replace(variants, profiles=(*variants.profiles, profile))
        return {**dynamic, **ranges}, variants


def target_option(function: F) -> F:
    """Add `--target`; the function gets ``targets``."""
    return click.option(
        "--target",
        "targets",
        multiple=True,
        default=("cpu",),
        metavar="TARGET",
        help="`cpu` (x86-64-v3 and -v4, chosen at load; the default), `cpu:x86-64-v3`, levels joined "
        "with + (`cpu:x86-64-v3+x86-64-v4`), `cpu:aarch64`, `cpu:arm64-macos`, "
        "`cuda:sm_80+sm_90+ptx`, `cuda:native`. Repeatable.",
    )(function)


def variant_options(function: F) -> F:
    """Add the options; the function gets them as ``wanted``."""

    def take(
        *,
        specialize: tuple[str, ...],
        profiles: tuple[str, ...],
        variant_limit: int,
        cover: tuple[str, ...],
        keep_variants: bool,
        min_shapes: str | None,
        opt_shapes: str | None,
        max_shapes: str | None,
        **rest: Any,
    ) -> Any:
        shapes = (min_shapes, opt_shapes, max_shapes)
        wanted = AskedVariants(specialize, profiles, variant_limit, cover, keep_variants, shapes)
        return function(wanted=wanted, **rest)

    decorated: Any = functools.update_wrapper(take, function)
    for decorate in reversed(_OPTIONS):
        decorated = decorate(decorated)
    result: F = decorated
    return result


_SHAPES = ("--minShapes", "--optShapes", "--maxShapes")

_OPTIONS = (
    click.option(
        "--specialize",
        multiple=True,
        metavar="NAME=SIZE,…",
        help="Code of its own for these sizes of a dim, beside the general code: `seq=128,256`. "
        "Repeatable; of several dims, every combination.",
    ),
    click.option(
        "--profile",
        "profiles",
        multiple=True,
        metavar="NAME:DIM=SIZE,DIM=LO..HI,…",
        help="One variant by name: `small:batch=1,seq=1..128`. Repeatable.",
    ),
    click.option(
        "--cover",
        multiple=True,
        metavar="NAME=LO..HI",
        help="Serve all sizes of this dim, also where the model branches on it: the arms that a trace "
        "leaves out are traced, too, each as a variant.",
    ),
    click.option(
        "--variant-limit",
        type=click.IntRange(min=0),
        default=DEFAULT_LIMIT,
        show_default=True,
        help="Refuse the export where more variants are asked for.",
    ),
    click.option(
        "--keep-variants",
        is_flag=True,
        help="Measure none of them, and keep those, too, that are slower than the general code.",
    ),
    click.option(
        "--minShapes",
        "min_shapes",
        metavar="INPUT:SIZExSIZE,…",
        help="As trtexec's: with --maxShapes, a range for each named axis, as --dynamic.",
    ),
    click.option(
        "--optShapes",
        "opt_shapes",
        metavar="INPUT:SIZExSIZE,…",
        help="As trtexec's: a variant `opt` at these sizes, as --profile.",
    ),
    click.option(
        "--maxShapes",
        "max_shapes",
        metavar="INPUT:SIZExSIZE,…",
        help="As trtexec's: see --minShapes.",
    ),
)
