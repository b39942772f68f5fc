"""Why torch could not make one graph of a model, as diagnostics on the user's own line."""

from __future__ import annotations

import re
import traceback
from typing import Any

from torch._dynamo.exc import (
    InternalTorchDynamoError,
    ObservedException,
    TorchDynamoException,
    TorchRuntimeError,
    Unsupported,
    UserError,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..artifacts.errors import Diagnostic, Location
from ..lowering.locations import location_of_frames, user_location

_DATA = re.compile(r"data.dependent", re.IGNORECASE)
_HINT = re.compile(r"^\s*Hint:\s*(?P<hint>.+)$", re.MULTILINE)
_EXPLANATION = re.compile(r"^\s*Explanation:\s*(?P<text>.+)$", re.MULTILINE)
# Hints of torch that are about torch.compile at run time, or about torch itself.
_NOT_OURS = (
    "torch.compile",
    "torch._dynamo",
    "fullgraph",
    "file an issue",
    "report",
    "graph break",
)


def explain_failure(error: BaseException) -> tuple[Diagnostic, bool]:
    """What a failed trace means, and whether it is the model's doing.

    Returns:
        The diagnostic, and False where torch's tracer itself broke, so that another way of tracing
        may succeed on the same model.
    """
    data = isinstance(error, GuardOnDataDependentSymNode) or _is_data_dependent(error)
    where = _where(error)
    if data:
        return (
            Diagnostic(
                "TC102",
                "a branch depends on the values of a tensor",
                location=where,
                notes=_explanation(error),
                tries=("torch.where for values, torch.cond for whole blocks",),
            ),
            True,
        )
    if isinstance(error, Unsupported):
        return (
            Diagnostic(
                "TC101",
                f"graph break: {_first_line(error)}",
                location=where,
                notes=_explanation(error),
                tries=_hints(error),
            ),
            True,
        )
    models = isinstance(error, (UserError, TorchRuntimeError, ObservedException))
    models = models or not isinstance(error, (TorchDynamoException, InternalTorchDynamoError))
    return (
        Diagnostic(
            "TC190",
            f"torch.export failed: {_first_line(error)}",
            location=where,
            notes=(f"{type(error).__module__}.{type(error).__name__}",),
        ),
        models and isinstance(error, (UserError, TorchRuntimeError)),
    )


def eager_failure(error: BaseException) -> tuple[str, Location | None]:
    """The message of an exception that the model itself raised, and the user's line it came from."""
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {_first_line(error)}", location_of_frames(frames)


def _is_data_dependent(error: BaseException) -> bool:
    kind = getattr(error, "gb_type", None) or getattr(error, "case_name", None) or ""
    return bool(_DATA.search(str(kind))) or isinstance(error.__cause__, GuardOnDataDependentSymNode)


def _where(error: BaseException) -> Location | None:
    stack: Any = getattr(error, "real_stack", None)
    if stack:
        return location_of_frames([(frame.filename, frame.lineno or 0) for frame in stack])
    found = user_location(str(error))
    if found is not None:
        return found
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    return location_of_frames(frames)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _explanation(error: BaseException) -> tuple[str, ...]:
    match = _EXPLANATION.search(str(error))
    return (match["text"].strip(),) if match else ()


def _hints(error: BaseException) -> tuple[str, ...]:
    hints = [match["hint"].strip() for match in _HINT.finditer(str(error))]
    return tuple(hint for hint in hints if not any(word in hint.lower() for word in _NOT_OURS))
