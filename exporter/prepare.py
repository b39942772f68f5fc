"""Source and options → the example call as it is traced: which axes are dynamic, and in which range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..artifacts.errors import Diagnostic, UsageError
from .axes import check_axes, check_dynamic_names, dim_sizes, parse_axis
from .examples import AxisExprs
from .options import DimRequest
from .prove import Span
from .ranges import Request
from .signature import Bound, bind
from .source import Source, has_modes
from .translate import substitute


@dataclass(frozen=True)
class Prepared:
    """A call as it is traced. ``shapes``: see `Trace.shapes`; ``sizes``: of the dynamic dims in the
    example; ``requests``: the range asked for each of them."""

    bound: Bound
    shapes: tuple[AxisExprs | None, ...]
    sizes: dict[str, int]
    requests: dict[str, Request]


def prepare(source: Source, dynamic: Mapping[str, DimRequest | None]) -> Prepared:
    """The example call with every axis as a number or an expression over the dynamic dims.

    Raises:
        UsageError: TC010, the model is in training mode; TC006, TC007, names that fit no axis; TC212,
            the example lies outside of a range that is asked for.
    """
    if not source.train or source.file is None:
        _require_eval_mode(source.module)
    dynamic = {**dict.fromkeys(source.dynamic), **dynamic}
    bound = bind(source.module, source.args, source.kwargs)
    plain = [path for path, leaf in bound.leaves if not isinstance(leaf, torch.Tensor)]
    axes = check_axes(source.axes, bound.tensors, plain)
    check_dynamic_names(dynamic, axes)
    everything = dim_sizes(axes, bound.tensors)
    fixed = {name: size for name, size in everything.items() if name not in dynamic}
    shapes = tuple(
        tuple(
            substitute(parse_axis(name), fixed) if isinstance(name, str) else int(size)
            for name, size in zip(axes[path], leaf.shape, strict=True)
        )
        if isinstance(leaf, torch.Tensor)
        else None
        for path, leaf in bound.leaves
    )
    requests = {
        name: Request(Span(1, None), given=False)
        if asked is None
        else Request(Span(asked.lo, asked.hi, asked.step), given=True)
        for name, asked in dynamic.items()
    }
    for name, request in requests.items():
        if everything[name] not in request.span and request.given:
            raise UsageError(
                Diagnostic(
                    "TC212",
                    f"{name} is {everything[name]} in the example inputs, outside of "
                    f"--dynamic {name}={request.span}",
                    tries=(f"example inputs with {name}={request.span.lo}",),
                )
            )
    return Prepared(bound, shapes, {name: everything[name] for name in dynamic}, requests)


def _require_eval_mode(module: torch.nn.Module) -> None:
    if not has_modes(module):
        return
    training = [name or "the model" for name, each in module.named_modules() if each.training]
    if training:
        raise UsageError(
            Diagnostic(
                "TC010",
                f"{training[0]} is in training mode",
                notes=(f"{len(training)} modules are",) if len(training) > 1 else (),
                tries=("model.eval()",),
            )
        )
