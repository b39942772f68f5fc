"""What is to be exported: a model with example inputs and names for its axes, from any source.

A source is a Python file (``model.py``, ``model.py:ClassName``), a saved .pt2 program, an .onnx file,
or a module in memory. Whatever it was, it comes out as a `Source`, checked: the example fits
``forward``, and the axis names fit the example.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.names import suggestions
from ..lowering.own_ops import Lowering
from .axes import Axes, annotated_axes, axes_from_python, check_axes, dim_names, parse_axes
from .inputs import Given, merged, parse_inputs
from .models import find_model
from .options import DimRequest
from .programs import load_program, program_axes
from .reference import Reference
from .signature import bind, forward_location, signature_text
from .userfile import UserFile, call, run_file, shown_path

Lowerings = Mapping[str, Lowering]


@dataclass(frozen=True)
class Source:
    """A model that is ready to be traced.

    Attributes:
        module: the model, in eval mode unless ``train``.
        args, kwargs: the example inputs as they were given; `signature.bind` brings them to one
            form.
        axes: for every tensor in the example, by its path, the name of each axis: a dim, an
            expression over dims, or None.
        name: the model's class.
        file: the source file as shown to the user; None for a module in memory.
        sha256: of the source file's bytes; empty for a module in memory.
        train: leave the module in the mode it is in.
        dynamic: dims that are dynamic unless they are asked for otherwise: those of a saved program.
        lowerings: functions for ops that are not torch's, by name: see `lowering.own_ops`.
        more: further examples, as args and kwargs, for `--dynamic auto`.
        notes: what was decided about the source, for the user.
        reference: who else can run the source, and whose answers the module's are held against.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    axes: Axes
    name: str
    file: str | None = None
    sha256: str = ""
    train: bool = False
    dynamic: tuple[str, ...] = ()
    lowerings: Lowerings = field(default_factory=dict)
    more: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    reference: Reference | None = None


def load_source(
    spec: str,
    *,
    inputs: Sequence[str] = (),
    axes: Sequence[str] = (),
    train: bool = False,
    dynamic: Mapping[str, DimRequest | None] | None = None,
) -> Source:
    """Load what a command line names as the source.

    Args:
        spec: ``model.py``, ``model.py:ClassName``, ``program.pt2`` or ``model.onnx``.
        inputs: ``--input`` options; they replace the file's example, parameter by parameter.
        axes: ``--axes`` options; they go before the names given by ``inputs``, by the file's
            ``axes`` and by jaxtyping annotations, in this order.
        train: do not put the model into eval mode.
        dynamic: the ranges that are asked for: an ONNX file has no example, one is drawn within them.

    Raises:
        UsageError: TC001 to TC008; of ONNX files also TC011, TC131 and TC132.
        ExportError: TC130, an ONNX file has operators that are not read.
    """
    given = parse_inputs(inputs)
    named = parse_axes(axes)
    path, attribute = _split(spec)
    if path.suffix == ".py":
        return _from_file(run_file(path), attribute, given, named, train)
    if path.suffix == ".onnx":
        return _from_onnx(path, given, named, train, dynamic or {})
    program = load_program(path)
    example = (program.args, program.kwargs) if program.has_example else None
    args, kwargs = _example(program.module, example, given, shown_path(path))
    own: Axes = {}
    if not named and not _axes_of(given):
        own = dict(program_axes(program.shapes, bind(program.module, args, kwargs).leaves))
    return Source(
        module=program.module,
        args=args,
        kwargs=kwargs,
        axes=_named_axes(program.module, args, kwargs, (named, _axes_of(given), own)),
        name=path.stem,
        file=shown_path(path),
        sha256=program.sha256,
        train=train,
        dynamic=tuple(dim_names(own)),
    )


def source_in_memory(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    axes: Mapping[str, Any] | None = None,
    lowerings: Lowerings | None = None,
    examples: Sequence[Any] = (),
) -> Source:
    """The source for a module that the caller holds; its mode is left as it is.

    Raises:
        UsageError: TC002, not a module; TC005 to TC007.
    """
    if not isinstance(module, torch.nn.Module):
        made = " (a class: make one of it first)" if isinstance(module, type) else ""
        message = f"the model is of type {type(module).__name__}, not a torch.nn.Module{made}"
        raise UsageError(Diagnostic("TC002", message))
    if not isinstance(args, tuple):
        raise UsageError(
            Diagnostic(
                "TC005",
                f"args is of type {type(args).__name__}, not a tuple",
                tries=("tcexport.export(model, (x,), …)",),
            )
        )
    keywords = dict(kwargs or {})
    names = _named_axes(module, args, keywords, (axes_from_python(axes or {}),))
    own = checked_lowerings(lowerings or {}, "the call")
    name = type(module).__name__
    more = tuple(_one_example(each, f"examples[{at}]") for at, each in enumerate(examples))
    return Source(module, args, keywords, names, name, train=True, lowerings=own, more=more)


def checked_lowerings(found: Any, place: str) -> Lowerings:
    """Functions by the names of ops: ``{"library::op": function}``.

    Raises:
        UsageError: TC520, something else.
    """
    tries = ('lowerings = {"mylib::gelu": lower_gelu}',)
    if not isinstance(found, Mapping):
        message = f"lowerings of {place} is a {type(found).__name__}, not a dict"
        raise UsageError(Diagnostic("TC520", message, tries=tries))
    for name, function in found.items():
        if not isinstance(name, str) or not _OP.fullmatch(name) or not callable(function):
            message = f"lowerings of {place} holds {name!r:.80}: {type(function).__name__}"
            raise UsageError(Diagnostic("TC520", message, tries=tries))
    return dict(found)


_OP = re.compile(r"\w+::\w+(\.\w+)?")


def _split(spec: str) -> tuple[Path, str | None]:
    """``model.py:MyNet`` → (model.py, MyNet)."""
    path, colon, attribute = spec.rpartition(":")
    if colon and path.endswith(".py") and not Path(spec).exists():
        found, name = Path(path), attribute
    else:
        found, name = Path(spec), None
    if found.is_dir():
        files = sorted(str(found / each.name) for each in found.glob("*.py"))[:1]
        raise _not_found(
            f"{spec} is a folder, not a source", tries=tuple(f"tcexport {f}" for f in files)
        )
    if not found.exists():
        folder = found.parent
        near = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        close = suggestions(
            found.name, [name for name in near if name.endswith((".py", ".pt2", ".onnx"))]
        )
        note = "" if folder.is_dir() else f"there is no folder {folder}"
        raise _not_found(
            f"there is no file {found}",
            notes=(note,) if note else (),
            tries=tuple(f"tcexport {folder / name}" for name in close[:1]),
        )
    if name == "":
        raise _not_found(f"{spec}: no class after the colon", tries=(f"tcexport {path}:MyNet",))
    return found, name


def _not_found(
    message: str, notes: tuple[str, ...] = (), tries: tuple[str, ...] = ()
) -> UsageError:
    return UsageError(Diagnostic("TC001", message, notes=notes, tries=tries))


def _from_onnx(
    path: Path,
    given: Sequence[Given],
    named: Axes,
    train: bool,
    dynamic: Mapping[str, DimRequest | None],
) -> Source:
    """All dims that the file names are dynamic, unless ``--axes`` says otherwise."""
    from .onnx.source import open_onnx

    opened = open_onnx(path)
    _check_roots(opened.module, given, inspect.signature(opened.module.forward).parameters)
    asked = {**_axes_of(given), **named}
    own = opened.axes(asked)
    values = {each.path: each.value for each in given if isinstance(each.value, torch.Tensor)}
    drawn = opened.example({**own, **asked}, values, dynamic)
    args, kwargs = _example(opened.module, (drawn, {}), given, shown_path(path))
    axes = _named_axes(opened.module, args, kwargs, (named, _axes_of(given), own))
    return Source(
        module=opened.module,
        args=args,
        kwargs=kwargs,
        axes=axes,
        name=path.stem,
        file=shown_path(path),
        sha256=opened.sha256,
        train=train,
        dynamic=tuple(dim for dim in dim_names(axes) if dim in opened.dims),
        notes=opened.notes,
        reference=opened.reference,
    )


def _from_file(
    file: UserFile, attribute: str | None, given: Sequence[Given], named: Axes, train: bool
) -> Source:
    shown = shown_path(file.path)
    module = find_model(file, attribute)
    examples = _file_examples(file) if hasattr(file.module, "example_inputs") else []
    args, kwargs = _example(module, examples[0] if examples else None, given, shown)
    more = tuple(_example(module, each, given, shown) for each in examples[1:])
    written = axes_from_python(getattr(file.module, "axes", {}))
    if not train and has_modes(module):
        call(module.eval, file.path, f"{shown}: {type(module).__name__}.eval()")
    return Source(
        module=module,
        args=args,
        kwargs=kwargs,
        axes=_named_axes(module, args, kwargs, (named, _axes_of(given), written)),
        name=type(module).__name__,
        file=shown,
        sha256=file.sha256,
        train=train,
        lowerings=checked_lowerings(getattr(file.module, "lowerings", {}), shown),
        more=more,
    )


def has_modes(module: torch.nn.Module) -> bool:
    """Whether a module can be put to training and evaluation mode. What torch.export made has the mode
    it was exported in, and its ``eval()`` only says so: quantized models (convert_pt2e) are such."""
    return not (isinstance(module, torch.fx.GraphModule) and "eval" in vars(module))


def _file_examples(file: UserFile) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    example: Any = file.module.example_inputs
    what = f"{shown_path(file.path)}: example_inputs"
    if callable(example) and not isinstance(example, torch.Tensor):
        what += "()"
        example = call(example, file.path, what)
    # A list of tensors is one example in the wrong brackets.
    if type(example) is list and example and all(isinstance(e, (tuple, dict)) for e in example):
        return [_one_example(each, f"{what}[{at}]") for at, each in enumerate(example)]
    return [_one_example(example, what)]


def _one_example(example: Any, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if type(example) is tuple:
        return example, {}
    if isinstance(example, Mapping) and all(isinstance(key, str) for key in example):
        return (), dict(example)
    tries = ("example_inputs = (ids, mask)", 'example_inputs = {"ids": ids, "mask": mask}')
    message = (
        f"{what} is of type {type(example).__name__}, not a tuple of arguments, a dict of keyword "
        "arguments, a tensor, or a list of several such tuples or dicts"
    )
    raise UsageError(Diagnostic("TC005", message, tries=tries))


def _example(
    module: torch.nn.Module,
    example: tuple[tuple[Any, ...], dict[str, Any]] | None,
    given: Sequence[Given],
    shown: str,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example of the source with the ``--input`` options put in."""
    parameters = inspect.signature(module.forward).parameters
    _check_roots(module, given, parameters)
    if example is None and not given and parameters:
        raise UsageError(
            Diagnostic(
                "TC004",
                f"{shown} has no example inputs for {signature_text(module)}",
                location=forward_location(module),
                notes=("the trace takes shapes, dtypes and structure from an example",),
                tries=(
                    f"example_inputs = ({', '.join(_required(parameters))},) in the source",
                    *_input_options(_required(parameters)),
                ),
            )
        )
    args, kwargs = example or ((), {})
    _check_keywords(module, kwargs, parameters)
    positional = [name for name, each in parameters.items() if each.kind in _POSITIONAL]
    args, kwargs = merged(args, kwargs, positional, given)
    args, kwargs = _spread(args, kwargs, parameters)
    bound = {*positional[: len(args)], *kwargs}
    missing = [name for name in _required(parameters, defaults=False) if name not in bound]
    if given and missing:
        raise UsageError(
            Diagnostic(
                "TC004",
                f"no example for {', '.join(missing)} of {signature_text(module)}",
                location=forward_location(module),
                tries=_input_options(missing),
            )
        )
    return args, kwargs


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _required(parameters: Mapping[str, inspect.Parameter], defaults: bool = True) -> list[str]:
    """The parameters that a call must give; if there are none and ``defaults``, the first."""
    found = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC
    ]
    return found or (list(parameters)[:1] if defaults else [])


def _input_options(names: Sequence[str]) -> tuple[str, ...]:
    options = " ".join(f"--input '{name}=float32[batch=4,8]'" for name in names)
    return (f"{options}   (with the dtype and sizes of your model)",) if names else ()


def _check_roots(
    module: torch.nn.Module, given: Sequence[Given], parameters: Mapping[str, inspect.Parameter]
) -> None:
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for each in given:
        root = str(each.steps[0])
        known = root in parameters and parameters[root].kind is not inspect.Parameter.VAR_KEYWORD
        if known or takes_any:
            continue
        close = suggestions(root, parameters)[:1]
        raise UsageError(
            Diagnostic(
                "TC006",
                f"--input: {signature_text(module)} has no parameter {root}",
                location=forward_location(module),
                tries=tuple(f"--input {name}=…" for name in close),
            )
        )


def _check_keywords(
    module: torch.nn.Module, kwargs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """A dict as ``example_inputs`` holds keyword arguments; a model may take the dict itself."""
    unknown = [name for name in kwargs if name not in parameters]
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    if unknown and not takes_any:
        raise UsageError(
            Diagnostic(
                "TC005",
                f"{signature_text(module)} has no parameter {', '.join(unknown)}, which "
                "example_inputs names",
                location=forward_location(module),
                notes=("a dict holds keyword arguments",),
                tries=("example_inputs = ({…},) to pass the dict as one argument",),
            )
        )


def _spread(
    args: tuple[Any, ...], kwargs: dict[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pass what was given by name, but is taken by position alone (``x, /``, ``*xs``), so."""
    kwargs = dict(kwargs)
    filled = list(args)
    for index, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL and isinstance(
            kwargs.get(name), tuple
        ):
            for before in list(parameters)[len(filled) : index]:
                if before in kwargs:
                    filled.append(kwargs.pop(before))
            filled += kwargs.pop(name)
        elif (
            parameter.kind is inspect.Parameter.POSITIONAL_ONLY
            and name in kwargs
            and index == len(filled)
        ):
            filled.append(kwargs.pop(name))
    return tuple(filled), kwargs


def _axes_of(given: Sequence[Given]) -> Axes:
    """The names that ``--input`` options give; an input with none leaves the naming to others."""
    return {each.path: each.axes for each in given if any(name is not None for name in each.axes)}


def _named_axes(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    layers: Sequence[Axes],
) -> Axes:
    """The axis names of every tensor; an earlier layer goes before a later one, input by input."""
    bound = bind(module, args, kwargs)
    tensors = bound.tensors
    axes: Axes = {}
    for layer in layers:
        axes = {**layer, **axes}
    unnamed = {path: tensor for path, tensor in tensors.items() if path not in axes}
    axes = {**annotated_axes(module, unnamed), **axes}
    others = [path for path, _ in bound.leaves if path not in tensors]
    return check_axes(axes, tensors, others)
