"""Running the user's own file, and telling its failures from ours.

The file runs as ``python file.py`` would run it, but for its name: its folder comes first on the
import path, ``sys.argv`` holds the file alone, and ``if __name__ == "__main__"`` blocks stay out.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.machinery
import importlib.util
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ..artifacts.errors import Diagnostic, Location, UsageError
from ..lowering.locations import location_of_frames

T = TypeVar("T")


@dataclass(frozen=True)
class UserFile:
    """The user's file after it ran. ``sha256`` is that of the bytes which ran."""

    path: Path
    sha256: str
    module: ModuleType


def shown_path(path: Path | str) -> str:
    """The path as a person would type it: relative where it lies below the current folder."""
    path = Path(path)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def run_file(path: Path) -> UserFile:
    """Run a Python file as a module of its own.

    The module stays in ``sys.modules`` under a name that nothing else has, so that its classes can
    be pickled; the folder stays at the end of ``sys.path``, so that imports inside of ``forward``
    are found during the trace without taking precedence over anything.

    Raises:
        UsageError: TC003, it cannot be compiled or raises; the traceback is the user's alone.
    """
    path = path.resolve()
    source = path.read_bytes()
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _syntax_error(path, error) from None
    tree = ast.parse(source)
    linecache.checkcache(str(path))
    name = _free_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UsageError(Diagnostic("TC001", f"{shown_path(path)} is not a Python file"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _as_script(path):
            _check_shadowed(path, tree)
            call(lambda: exec(code, module.__dict__), path, shown_path(path))
    except BaseException:
        del sys.modules[name]
        raise
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    _check_shadowed(path, tree)  # again: what is not imported yet is found from here on
    return UserFile(path, hashlib.sha256(source).hexdigest(), module)


def call(function: Callable[[], T], path: Path, what: str) -> T:
    """Call into the user's code; ``what`` names it in the message if it fails.

    Raises:
        UsageError: TC003.
        KeyboardInterrupt: passed on as it is.
    """
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        raise UsageError(
            Diagnostic(
                "TC003",
                f"{what} ended the process: SystemExit({error.code!r})",
                location=_innermost(error, path),
                notes=("the file is imported, not run as a script",),
                tries=('put what a script does under `if __name__ == "__main__":`',),
            )
        ) from None
    except BaseException as error:
        raise _failure(error, path, what) from None


@contextmanager
def _as_script(path: Path) -> Iterator[None]:
    folder, argv, before = str(path.parent), sys.argv, list(sys.path)
    sys.argv = [str(path)]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = argv
        # What the file itself added to the path stays: it may be needed by the trace.
        added = [entry for entry in sys.path if entry not in before and entry != folder]
        sys.path[:] = before + added


def _free_name(path: Path) -> str:
    stem = "tcexport_source_" + re.sub(r"\W", "_", path.stem)
    name, number = stem, 2
    while name in sys.modules:
        name, number = f"{stem}_{number}", number + 1
    return name


# --- failures -------------------------------------------------------------------------------------


def _failure(error: BaseException, path: Path, what: str) -> UsageError:
    told = traceback.format_exception_only(type(error), error)[-1].strip()
    notes, tries = _advice(error, path)
    return UsageError(
        Diagnostic(
            "TC003",
            f"{what} raised {told}",
            location=_innermost(error, path),
            notes=(*notes, *users_traceback(error)),
            tries=tries,
        )
    )


def _advice(error: BaseException, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(error, ImportError) and "relative import" in str(error):
        note = "the file runs on its own, not as part of a package; its folder is importable"
        return (note,), ("`from helpers import x` instead of `from .helpers import x`",)
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package in sys.modules or importlib.util.find_spec(package) is not None:
            return (), ()
        note = f"{package} is neither beside {path.name} nor installed for {sys.executable}"
        if _neighbour(Path.cwd(), package) or Path(package).is_dir():
            note += "; there is one in the current folder, which is not on the import path"
            return (note,), ("PYTHONPATH=. tcexport …",)
        meant = _meant(package, path.parent)
        if meant is not None:
            return (note,), (f"import {meant}",)
        return (note,), (f"{sys.executable} -m pip install {package}",)
    return (), ()


def _meant(package: str, folder: Path) -> str | None:
    """The module that can be imported and whose name a misspelt one almost is."""
    beside = [each.stem for each in folder.glob("*.py")]
    for names in (beside, packages_distributions(), sys.stdlib_module_names):
        near = sorted(name for name in names if abs(len(name) - len(package)) <= 2)
        close = difflib.get_close_matches(package, near, 1, cutoff=0.79)
        if close:
            return close[0]
    return None


def _syntax_error(path: Path, error: SyntaxError | ValueError) -> UsageError:
    location = None
    if isinstance(error, SyntaxError) and error.lineno:
        location = Location(shown_path(path), error.lineno, (error.text or "").strip())
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    message = f"{shown_path(path)} is not valid Python: {reason}"
    return UsageError(Diagnostic("TC003", message, location=location))


def users_traceback(error: BaseException) -> tuple[str, ...]:
    """The lines of Python's own traceback, without the frames of ours and of the import system."""
    told = traceback.TracebackException.from_exception(error, compact=True)
    seen = {id(told)}
    stack = [told]
    while stack:
        each = stack.pop()
        each.stack[:] = [frame for frame in each.stack if not _is_machinery(frame.filename)]
        for linked in (
            each.__cause__,
            each.__context__,
            *(getattr(each, "exceptions", None) or ()),
        ):
            if linked is not None and id(linked) not in seen:
                seen.add(id(linked))
                stack.append(linked)
    return tuple("".join(told.format()).rstrip().splitlines())


def _is_machinery(filename: str) -> bool:
    return filename.startswith("<frozen importlib") or filename in _MACHINERY


_MACHINERY = frozenset({__file__, importlib.util.__file__, importlib.__file__})


def _innermost(error: BaseException, path: Path) -> Location | None:
    """The innermost line of the user's file that the error came through."""
    frames = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    found = location_of_frames([frame for frame in frames if frame[0] == str(path)])
    return found and Location(shown_path(found.file), found.line, found.text)


# --- shadowed imports -----------------------------------------------------------------------------


def _check_shadowed(path: Path, tree: ast.Module) -> None:
    """Refuse a file whose import of a neighbour finds, or will find, something else.

    ``import rich`` beside a rich.py of the user's gives the installed rich if that was imported
    before the file ran. To go on would be to export another model than the user reads.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        else:
            continue
        for name in {each.partition(".")[0] for each in names}:
            neighbour = _neighbour(path.parent, name)
            found = _origin(name)
            if neighbour is None or found is None or found.samefile(neighbour):
                continue
            raise UsageError(
                Diagnostic(
                    "TC003",
                    f"`import {name}` does not find the {shown_path(neighbour)} beside the source",
                    location=location_of_frames([(str(path), node.lineno)]),
                    notes=(f"it finds {found}",),
                    tries=(f"rename {shown_path(neighbour)} and its imports",),
                )
            )


def _neighbour(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name / "__init__.py", folder / f"{name}.py"):
        if candidate.is_file():
            return candidate
    return None


def _origin(name: str) -> Path | None:
    """The file that ``import name`` gives now; None where it gives none, or not from a file."""
    loaded: Any = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
    else:
        spec = importlib.machinery.PathFinder.find_spec(name)
        file = spec.origin if spec is not None and spec.has_location else None
    return Path(file) if file and Path(file).exists() else None
