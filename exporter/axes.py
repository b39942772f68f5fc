"""Names for axes: where they are given, how they are written, and whether they fit the example.

An axis is named by a dim (``seq``), by an expression over dims (``2*n``, ``n+1``), or not at all
(None): then it is fixed at the example's size, which an int may state.
"""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import Expr, ExprError, dims_of, evaluate, line_of, render
from ..artifacts.names import suggestions
from .options import DimRequest, is_dim_name
from .translate import substitute

AxisName: TypeAlias = "str | int | None"
Axes: TypeAlias = "Mapping[str, tuple[AxisName, ...]]"

_OPERATORS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}


# --- reading --------------------------------------------------------------------------------------


def parse_axis(text: str) -> Expr:
    """Read the name of an axis: a dim or an expression over dims (``+ - * // %`` and parentheses).

    Raises:
        UsageError: TC007.
    """
    try:
        expr = _from_syntax(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        raise UsageError(
            Diagnostic(
                "TC007",
                f"{text!r} does not name an axis",
                notes=(
                    "an axis is named like a variable (seq), by an expression (2*n, n+1), "
                    "or by _ where it is fixed",
                ),
            )
        ) from None
    return expr


def _from_syntax(node: ast.expr) -> Expr:
    if isinstance(node, ast.Name) and is_dim_name(node.id):
        return node.id
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return (_OPERATORS[type(node.op)], _from_syntax(node.left), _from_syntax(node.right))
    raise ValueError


def parse_axes(values: Sequence[str]) -> Axes:
    """Read ``--axes`` options: ``input_ids=batch,seq``; ``_`` or ``-`` is a fixed axis.

    Raises:
        UsageError: TC008, not of this form, or an input twice; TC007, a name that is none.
    """
    axes: dict[str, tuple[AxisName, ...]] = {}
    for value in values:
        path, equals, names = value.partition("=")
        path = path.strip()
        if not equals or not path or not names.strip():
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"cannot read --axes {value}",
                    notes=("it is read as INPUT=NAME,NAME,… with _ for a fixed axis",),
                    tries=(f"--axes {path or 'input_ids'}=batch,seq",),
                )
            )
        if path in axes:
            raise UsageError(Diagnostic("TC008", f"--axes names {path} twice"))
        axes[path] = tuple(_axis_from_text(name.strip()) for name in names.split(","))
    return axes


def _axis_from_text(text: str) -> AxisName:
    if text in ("_", "-"):
        return None
    if text.isdigit():
        return int(text)
    return render(parse_axis(text))


def axes_from_python(axes: Any) -> Axes:
    """Validate ``axes`` as written in Python: path → a name, expression, int or None per axis.

    Raises:
        UsageError: TC007.
    """
    if not isinstance(axes, Mapping):
        raise _unfit(
            f"axes is of type {type(axes).__name__}, not a dict from inputs to names",
            tries=('axes = {"input_ids": ("batch", "seq")}',),
        )
    return {path: _names_from_python(path, names) for path, names in axes.items()}


def _names_from_python(path: Any, names: Any) -> tuple[AxisName, ...]:
    if not isinstance(path, str):
        raise _unfit(f"axes: {path!r} is not the path of an input", ('axes = {"x": ("n",)}',))
    if not isinstance(names, (tuple, list)):
        written = tuple(names.replace(",", " ").split()) if isinstance(names, str) else ("batch",)
        raise _unfit(
            f'axes["{path}"] is {names!r}, not a tuple with one name for each axis',
            (f'axes = {{"{path}": {written!r}}}',),
        )
    found: list[AxisName] = []
    for name in names:
        if name is None or (type(name) is int and name >= 0):
            found.append(name)
        elif isinstance(name, str):
            found.append(_axis_from_text(name.strip()))
        else:
            raise _unfit(f'axes["{path}"]: {name!r} is not a name, an int or None')
    return tuple(found)


def annotated_axes(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Axes:
    """Axis names from jaxtyping annotations on ``forward``: ``Float[Tensor, "batch seq 16"]``.

    Of jaxtyping's forms, names, expressions and literals are taken. Axes under ``...``, ``*rest``,
    ``#broadcast``, ``?tree`` and ``{…}`` stay without a name, for they may differ from use to use.

    Raises:
        UsageError: TC007, an annotation of another rank than the example has.
    """
    axes: dict[str, tuple[AxisName, ...]] = {}
    for name, annotation in _annotations(module).items():
        text = _jaxtyping_dims(annotation)
        if text is None or name not in tensors:
            continue
        rank = tensors[name].dim()
        tokens = text.split()
        variadic = [i for i, token in enumerate(tokens) if _is_variadic(token)]
        if len(tokens) - len(variadic) > rank or (not variadic and len(tokens) != rank):
            raise _unfit(
                f'forward says {name} is "{text}", but the example has {_ranks(rank)}',
            )
        if variadic:
            spread = rank - len(tokens) + 1
            tokens[variadic[0] : variadic[0] + 1] = ["_"] * spread
        axes[name] = tuple(_axis_from_jaxtyping(token) for token in tokens)
    return axes


def _annotations(module: torch.nn.Module) -> dict[str, Any]:
    """The annotations of ``forward``; those in quotes are resolved where that is possible."""
    forward = inspect.unwrap(module.forward)
    names = getattr(forward, "__globals__", {})
    found = {}
    for name, annotation in getattr(forward, "__annotations__", {}).items():
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, names)
            except Exception:  # a name for type checkers only: then it is no jaxtyping for us
                continue
        found[name] = annotation
    return found


def _jaxtyping_dims(annotation: Any) -> str | None:
    """The dims of a jaxtyping annotation, also within Optional and Annotated; else None."""
    text = getattr(annotation, "dim_str", None)
    if isinstance(text, str) and type(annotation).__module__.startswith("jaxtyping"):
        return text
    found = [_jaxtyping_dims(part) for part in typing.get_args(annotation)]
    named = [text for text in found if text is not None]
    is_union = typing.get_origin(annotation) in _UNIONS
    return named[0] if is_union and len(named) == 1 else None


_UNIONS: tuple[Any, ...] = (typing.Union, type(int | str), typing.Annotated)


def _is_variadic(token: str) -> bool:
    return token == "..." or token.lstrip("#?_").startswith("*")


def _axis_from_jaxtyping(token: str) -> AxisName:
    if token.startswith(("#", "?", "{", "_")):
        return None
    token = token.rpartition("=")[2]  # "rows=4" documents a literal
    return _axis_from_text(token)


# --- holding against the example ------------------------------------------------------------------


def check_axes(axes: Axes, tensors: Mapping[str, torch.Tensor], others: Sequence[str]) -> Axes:
    """Hold axis names against the example's tensors.

    Returns:
        An entry for every tensor, in the order of ``tensors``; unnamed axes are None.

    Args:
        others: the paths of arguments that are no tensors, for better messages.

    Raises:
        UsageError: TC006, a path that is not there; TC007, as many names as there are not axes, an
            int that is not the size, or one name with two sizes.
    """
    for path, names in axes.items():
        if path not in tensors:
            raise _no_such_input(path, tensors, others)
        shape = tuple(tensors[path].shape)
        if len(names) != len(shape):
            raise _unfit(
                f"{path} has {_ranks(len(shape))} (the example is {list(shape)}), "
                f"but {len(names)} are named: {_listed(names)}",
                _both_forms(path, _padded(names, len(shape))),
            )
        for axis, (name, size) in enumerate(zip(names, shape, strict=True)):
            if isinstance(name, int) and name != size:
                raise _unfit(f"{path} axis {axis} is said to be {name}, but the example has {size}")
    dim_sizes(axes, tensors)
    return {path: axes.get(path, (None,) * tensor.dim()) for path, tensor in tensors.items()}


def dim_sizes(axes: Axes, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The size of every dim in the example, in order of appearance.

    A dim that stands alone on no axis is solved for: ``2*n`` over 10 gives 5.

    Raises:
        UsageError: TC007, two sizes for one name, or no size for one.
    """
    named = [
        (parse_axis(name), int(size), f"{path} axis {axis}")
        for path, names in axes.items()
        for axis, (name, size) in enumerate(zip(names, tensors[path].shape, strict=True))
        if isinstance(name, str)
    ]
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for expr, size, where in named:
        if not isinstance(expr, str):
            continue
        if sizes.setdefault(expr, size) != size:
            raise _unfit(
                f"{expr} is {sizes[expr]} on {origin[expr]} and {size} on {where} in the example",
                notes=("equal names mean equal sizes; give the axes two names, or equal sizes",),
            )
        origin.setdefault(expr, where)
    for _ in named:  # each round solves for one more dim, at most one for each axis
        for expr, size, where in named:
            unknown = dims_of(expr) - sizes.keys()
            if len(unknown) == 1:
                (dim,) = unknown
                solved = solve(expr, dim, size, sizes)
                if solved is not None:
                    sizes[dim], origin[dim] = solved, where
    for expr, size, where in named:
        unknown = dims_of(expr) - sizes.keys()
        if unknown:
            raise _unfit(
                f"{where} is {render(expr)}, which is {size} in the example for no size of "
                f"{', '.join(sorted(unknown))}"
                if len(unknown) == 1
                else f"{where} is {render(expr)}, but nothing says what "
                f"{' and '.join(sorted(unknown))} are",
            )
        try:
            value = evaluate(expr, sizes)
        except ExprError as error:
            raise _unfit(f"{where} is {render(expr)}: {error}") from None
        if value != size:
            used = ", ".join(f"{dim}={sizes[dim]} ({origin[dim]})" for dim in sorted(dims_of(expr)))
            raise _unfit(
                f"{where} is {render(expr)} = {value}, but the example has {size}",
                notes=(f"with {used}",),
            )
    order = [dim for expr, _, _ in named for dim in sorted(dims_of(expr))]
    return {dim: sizes[dim] for dim in dict.fromkeys(order)}


def solve(expr: Expr, dim: str, size: int, sizes: Mapping[str, int]) -> int | None:
    """The one size >= 0 of ``dim`` for which a growing line over it is ``size``; else None."""
    line = line_of(substitute(expr, sizes), dim)
    if line is None:
        return None
    scale, offset = line
    if scale < 1 or (size - offset) % scale or size < offset:
        return None
    return (size - offset) // scale


def dim_names(axes: Axes) -> list[str]:
    """All dims that the axes name, in order of appearance."""
    found = [
        dim
        for names in axes.values()
        for name in names
        if isinstance(name, str)
        for dim in sorted(dims_of(parse_axis(name)))
    ]
    return list(dict.fromkeys(found))


def check_dynamic_names(dynamic: Mapping[str, DimRequest | None], axes: Axes) -> None:
    """Hold the names of ``--dynamic`` against the names of the axes (as `check_axes` gives them).

    Raises:
        UsageError: TC006, with the names that are there.
    """
    known = dim_names(axes)
    for name in dynamic:
        if name in known:
            continue
        if not known:
            raise UsageError(
                Diagnostic(
                    "TC006",
                    f"no axis is called {name}: the axes have no names yet",
                    notes=(f"inputs: {_inputs(axes)}",),
                    tries=_naming(name, axes),
                )
            )
        close = suggestions(name, known)
        raise UsageError(
            Diagnostic(
                "TC006",
                f"no axis is called {name}",
                notes=(f"axes: {_named_inputs(axes)}",),
                tries=tuple(f"--dynamic {other}" for other in close[:1] or known[:1]),
            )
        )


def _inputs(axes: Axes) -> str:
    return ", ".join(f"{path} ({_ranks(len(names))})" for path, names in axes.items()) or "none"


def _named_inputs(axes: Axes) -> str:
    return ", ".join(f"{path} ({_listed(names)})" for path, names in axes.items())


def _naming(name: str, axes: Axes) -> tuple[str, ...]:
    for path, names in axes.items():
        if names:
            return _both_forms(path, (name, *[None] * (len(names) - 1)))
    return ()


def _no_such_input(
    path: str, tensors: Mapping[str, torch.Tensor], others: Sequence[str]
) -> UsageError:
    listed = ", ".join(tensors) or "none"
    notes = [f"tensor inputs: {listed}"]
    below = [other for other in tensors if other.startswith((f"{path}.", f"{path}["))]
    if path in others:
        message = f"axes: {path} is a plain value, it has no axes"
    elif below:
        message = f"axes: {path} holds several inputs, name them one by one"
    else:
        message = f"axes: there is no input {path}"
    close = below[:1] or suggestions(path, tensors)[:1]
    tries = tuple(
        attempt
        for other in close
        for attempt in _both_forms(other, _placeholders(tensors[other].dim()))
    )
    return UsageError(Diagnostic("TC006", message, notes=tuple(notes), tries=tries))


def _placeholders(rank: int) -> tuple[AxisName, ...]:
    return _padded(("batch", "seq"), rank)


def _both_forms(path: str, names: tuple[AxisName, ...]) -> tuple[str, ...]:
    """Axis names as they are typed on the command line, and in Python."""
    typed = ",".join("_" if name is None else str(name) for name in names)
    return f"--axes {path}={typed}", f'axes={{"{path}": {names!r}}}'


def _padded(names: tuple[AxisName, ...], rank: int) -> tuple[AxisName, ...]:
    return (*names, *[None] * rank)[:rank]


def _listed(names: Sequence[AxisName]) -> str:
    return ", ".join("_" if name is None else str(name) for name in names)


def _ranks(rank: int) -> str:
    return "1 axis" if rank == 1 else f"{rank} axes"


def _unfit(message: str, tries: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> UsageError:
    return UsageError(Diagnostic("TC007", message, notes=notes, tries=tries))
