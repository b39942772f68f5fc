"""Whether the packages that exporting needs are installed. Imports none of them."""

from __future__ import annotations

import importlib.util

from ..artifacts.errors import Diagnostic, UsageError

_PACKAGES = {
    "torch": "torch",
    "tvm": "apache-tvm",
    "sympy": "sympy",
    "z3": "z3-solver",
}


def missing_extra() -> UsageError | None:
    """The error TC011, with the line to type, where a package for exporting is missing."""
    missing = [
        package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None
    ]
    if not missing:
        return None
    return UsageError(
        Diagnostic(
            "TC011",
            f"exporting needs what is not installed here: {', '.join(missing)}",
            notes=("loading and running bundles works without",),
            tries=("pip install 'tcexport[export]', or '.[export]' in a checkout",),
        )
    )


def require_extra() -> None:
    """Raises the error of `missing_extra`, if there is one."""
    error = missing_extra()
    if error is not None:
        raise error
