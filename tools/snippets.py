"""Snippets: small models beside the diagnostics that they must get, one Markdown file a family.

A ``##`` heading starts a case. Its first Python block is model.py, its second one the mended form;
further files are blocks whose first line is a comment with their name (``# call.py``, and
``# call.py mended`` for the second form). A comment
``# TC102`` on a line, or ``# TC102: words of the message``, says what must be said of this line; a
comment alone on a line says what is said without one. A ``sh`` block holds the commands for the two
forms, where they are others than `_command` gives.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import runpy
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .cli import run_command

FOLDERS = (Path("tests/exporter/snippets"), Path("tests/runtime/snippets"))
HEADER = "import torch\nfrom torch import nn\n"

_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"\s*# (?P<codes>TC\d{3}(?: TC\d{3})*)(?:: (?P<words>.+))?$")
_NAME = re.compile(r"# (?P<name>\w+\.py)(?P<mended> mended)?\n")
_SAID = re.compile(
    r"^(?P<severity>error|warning|note|GuardError|BundleError)?\[(?P<code>TC\d{3})\] "
    r"(?P<message>.*)(?:\n  (?P<file>[^\s:]+):(?P<line>\d+)   .*)?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Said:
    """One diagnostic as a user sees it. ``line``: of model.py, 0 where it has none."""

    code: str
    line: int
    message: str
    severity: str = ""
    file: str = ""


@dataclass(frozen=True)
class Form:
    """One form of a model: ``files`` by name as they stand in the snippet; ``command``: what is
    typed; ``owed``: what must be said of model.py, with words of the message."""

    files: Mapping[str, str]
    command: str
    owed: tuple[Said, ...]


@dataclass(frozen=True)
class Case:
    """``broken`` must get its diagnostics; ``mended`` must be taken."""

    family: str
    name: str
    about: str
    broken: Form
    mended: Form | None

    @property
    def code(self) -> str:
        """The code that the case is an example of: the first that its lines name."""
        return self.broken.owed[0].code if self.broken.owed else ""


def cases(folder: Path) -> Iterator[Case]:
    """All cases of a folder, file by file."""
    for file in sorted(folder.glob("*.md")):
        for section in file.read_text(encoding="utf-8").split("\n## ")[1:]:
            yield _case(file.stem, section)


def _case(family: str, section: str) -> Case:
    name, _, rest = section.partition("\n")
    main: list[str] = []
    others: dict[str, str] = {}
    instead: dict[str, str] = {}
    commands: list[str] = []
    for block in _BLOCK.finditer(rest):
        named = _NAME.match(block["text"])
        if block["kind"] == "sh":
            commands = block["text"].strip().splitlines()
        elif named is not None:
            files = instead if named["mended"] else others
            files[named["name"]] = block["text"].replace(" mended\n", "\n", 1)
        else:
            main.append(block["text"])
    several = 2 if instead else max(len(main), len(commands))
    if not main or several > 2:
        raise ValueError(f"{family}, {name}: one model, or two, and as many commands")
    about = _BLOCK.sub("", rest).strip()
    forms = []
    for number in range(max(several, 1)):
        text = main[min(number, len(main) - 1)]
        command = commands[min(number, len(commands) - 1)] if commands else _command(text)
        if number == 1 and len(main) == 1:
            text = shown(text)
        head = HEADER if text.startswith(("import ", "from ")) else f"{HEADER}\n\n"
        files = {"model.py": head + text, **others, **(instead if number else {})}
        forms.append(_form(files, command))
    return Case(family, name, about, forms[0], forms[1] if forms[1:] else None)


def _command(text: str) -> str:
    """What is typed for a model: its file has an example, or it takes a matrix."""
    example = "" if "example_inputs" in text else " --input 'x=float32[n=5,6]'"
    return f"tcexport check model.py{example} --dynamic n"


def _form(files: Mapping[str, str], command: str) -> Form:
    owed = []
    for number, line in enumerate(files["model.py"].splitlines(), 1):
        mark = _MARK.search(line)
        if mark is not None:
            alone = not line[: mark.start()].strip()
            owed += [
                Said(code, 0 if alone else number, mark["words"] or "")
                for code in mark["codes"].split()
            ]
    return Form(files, command, tuple(owed))


def shown(text: str) -> str:
    """A file as a page shows it: without the marks of what is said of no line."""
    lines = text.rstrip().splitlines()
    return "\n".join(line for line in lines if not re.fullmatch(_MARK, line))


def unmarked(text: str) -> str:
    """A file of a snippet without its marks, line by line the same."""
    return "\n".join(_MARK.sub("", line) for line in text.splitlines()) + "\n"


def write(form: Form, folder: Path) -> None:
    """Write a form's files into a folder, without marks."""
    for name, text in form.files.items():
        (folder / name).write_text(unmarked(text), encoding="utf-8")


def run(form: Form, folder: Path) -> tuple[int, str]:
    """Type a form's command in a folder, as a user would; the status, and what was written.

    A ``python`` command finds the model's bundle there, m.tcpkg.
    """
    write(form, folder)
    if form.command.startswith("python ") or "m.tcpkg" in form.command:
        (folder / "m.tcpkg").write_bytes(_bundle(form.files["model.py"]))
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    try:
        status, output = _run(form.command)
    finally:
        os.chdir(before)
        sys.path[:] = path
    for here, there in ((f"{folder}/", ""), (sys.executable, "python")):
        output = output.replace(here, there)
    return status, output


def bundle_command(text: str) -> str:
    """What is typed to make a model's bundle, for calls of it."""
    dims = "n=1..8,m=1..8 --narrow" if '"m"' in text else "n=1..8"
    typed = _command(text).replace("check ", "").replace("--dynamic n", f"--dynamic {dims}")
    return f"{typed} --target cpu:x86-64-v3 -o m.tcpkg"


@functools.cache
def _bundle(text: str) -> bytes:
    """The bundle of a model, made by the command as well."""
    with tempfile.TemporaryDirectory() as folder:
        command = bundle_command(text).replace("-o m.tcpkg", "-o out.tcpkg")
        form = Form({"model.py": text}, command, ())
        status, output = run(form, Path(folder))
        if status:
            raise ValueError(output)
        return (Path(folder) / "out.tcpkg").read_bytes()


def _run(command: str) -> tuple[int, str]:
    program, *arguments = shlex.split(command)
    written = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(written):
        if program == "tcexport":
            status = run_command([*arguments, "-q"] if arguments[0] != "explain" else arguments)
        else:
            status = _run_script(arguments[0])
    return status, written.getvalue()


def _run_script(file: str) -> int:
    try:
        runpy.run_path(file, run_name="__main__")
    except Exception as error:
        print(
            "".join(traceback.format_exception_only(type(error), error)).rstrip(), file=sys.stderr
        )
        return 1
    return 0


def said(output: str) -> list[Said]:
    """The diagnostics in what a command wrote."""
    return [
        Said(
            match["code"],
            int(match["line"] or 0),
            match["message"],
            match["severity"] or "",
            match["file"] or "",
        )
        for match in _SAID.finditer(output)
    ]
