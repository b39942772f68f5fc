"""The snippets: each model gets the diagnostics that its lines owe, and its mended form is taken."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import random
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tcexport.artifacts.errors import Diagnostic, UsageError
from tcexport.artifacts.rules import RULES
from tcexport.exporter.check import check_source
from tcexport.lowering import lower, worker
from tcexport.tools.check import command
from tcexport.tools.snippets import Case, Form, cases, write
from tcexport.tools.sources import Asked, load

CASES = list(cases(Path(__file__).parent / "snippets"))
_TORCHS_OWN = re.compile(
    r"\b(?:s|u|zuf|zf)\d+\b|L\[|flat_args|orch\.compile|ynamo|/site-packages/"
    r"|\b(?:TruncToInt|ToFloat|OpaqueUnaryFn_\w+|Max|Min)\("
)
_TRIED = re.compile(r"try: --(?P<asked>dynamic \S+|narrow)   \(tried, works")


def _run_worker_here(request: Path, progress: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):  # where it tells its stages
        worker.main(str(request))


@pytest.fixture(autouse=True)
def _one_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's code in this process: TVM is loaded once, not for every model."""
    monkeypatch.setattr(lower, "_run_worker", _run_worker_here)
    monkeypatch.delenv("SCALE", raising=False)


def forms() -> Iterator[Any]:
    for case in CASES:
        name = f"{case.family}: {case.name}"
        yield pytest.param(case.broken, False, id=name)
        if case.mended is not None:
            yield pytest.param(case.mended, True, id=f"{name}, mended")


def found_in(form: Form, folder: Path) -> tuple[bool, tuple[Diagnostic, ...]]:
    """Whether a form is refused, and all that is said of it; the model stays as it was."""
    write(form, folder)
    with command.make_context("check", shlex.split(form.command)[2:]) as context:
        names = Asked.__dataclass_fields__
        given = {name: value for name, value in context.params.items() if name in names}
    try:
        asked = Asked(**{**given, "spec": context.params["source"]})
        source, dynamic = load(asked, lambda stage, seconds: None)
        before = everything(source.module)
        findings = check_source(source, dynamic=dynamic, narrow=asked.narrow)
        _assert_equal(everything(source.module), before)
    except UsageError as error:
        return True, error.diagnostics
    return bool(findings.errors), (*findings.errors, *findings.notes)


def everything(module: torch.nn.Module) -> dict[str, Any]:
    """All state that the user has, as plain text and bits."""
    users = sys.modules[type(module).__module__]
    return {
        "attributes": copy.deepcopy(
            [
                {key: each for key, each in vars(part).items() if _is_plain(key, each)}
                for part in module.modules()
            ]
        ),
        "tensors": {name: each.clone() for name, each in module.state_dict().items()},
        "globals": copy.deepcopy(
            {key: each for key, each in vars(users).items() if _is_plain(key, each)}
        ),
        "random": (random.getstate(), str(np.random.get_state())),
        "torch": {"state": torch.get_rng_state()},
        "modes": (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()),
        "hooks": [id(each) for each in (sys.gettrace(), sys.getprofile(), open, torch.save)],
        "logs": [logging.getLogger(name).level for name in ("torch._dynamo", "torch.export")],
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def _is_plain(key: str, value: Any) -> bool:
    plain = isinstance(value, (int, float, str, bool, list, dict, type(None)))
    return plain and not key.startswith("_")


def _assert_equal(after: dict[str, Any], before: dict[str, Any]) -> None:
    for key in ("tensors", "torch"):
        torch.testing.assert_close(after.pop(key), before.pop(key), rtol=0, atol=0)
    assert after == before


@pytest.mark.parametrize(("form", "mended"), list(forms()))
def test_each_line_gets_what_is_owed_and_the_model_stays_as_it_was(
    form: Form, mended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused, found = found_in(form, tmp_path)
    told = "\n".join(each.render() for each in found)
    said = {(each.location.line if each.location else 0, each.code) for each in found}
    assert said == {(each.line, each.code) for each in form.owed}, told
    for owed in form.owed:
        messages = [each.message for each in found if each.code == owed.code]
        assert any(owed.message in message for message in messages), told
    for each in found:
        assert each.location is None or each.location.file == "model.py"
    assert not _TORCHS_OWN.search(told), told
    assert refused == any(each.severity == "error" for each in found)
    assert not (mended and refused)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("an if on a mean", "torch.where(condition, a, b)"),
        ("an if around blocks", "torch.cond("),
        ("blocks that lay out their results in two ways", "y.t().contiguous()"),
        ("blocks of which one gives more", "from both sides"),
        ("blocks that a number decides on", "torch.cond(n > 2, f, g, (x,))"),
        ("in a library, found by a mask's values", "is_causal=True"),
        ("in a library, found by a mask's values", "it happens in torch/nn/modules/"),
        ("an exception raised for values", "assert x.isfinite().all()"),
        ("a while loop on values", "a fixed number of steps"),
        ("tolist", "x > x.mean(), not x > x.mean().item()"),
        ("a value that indexes a Python list", "index_select(0, i.reshape(1))"),
        ("a function of numpy that torch has", "torch.trapezoid"),
        ("a checksum", "self.value = …"),
        ("torch.save", "return the tensor"),
        ("reading a file", "read files in __init__"),
        ("a write through .data", "y = y + 1, not y.data.add_(1)"),
        ("a write into an input", "x.clone()"),
        ("a counter", "take self.calls as an input and return the new value"),
        ("torch.rand", "the random tensor as an input"),
        ("the time", "take the time as an input"),
        ("one line, met twice", "met 2 times in one call"),
        ("a misspelt import", "import numpy"),
        ("an error that is caught", "a condition on sizes in place of try"),
        ("an error that is caught", "RuntimeError: shape '[-1, 4, 6]' is invalid"),
        ("a parameter in the place of another", "take self.scale as an input"),
        ("a size as text", "leave the dim out of --dynamic"),
    ],
)
def test_a_diagnostic_says_what_to_type(
    name: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (case,) = (each for each in CASES if each.name == name)
    _, found = found_in(case.broken, tmp_path)
    assert any(hint in line for each in found for line in (*each.tries, *each.notes)), found


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if any(each.code == "TC210" for each in case.broken.owed)],
    ids=lambda case: case.name,
)
def test_the_range_that_is_suggested_was_tried_and_works(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, found = found_in(case.broken, tmp_path)
    suggested = _TRIED.search("\n".join(each.render() for each in found))
    assert suggested is not None, found
    typed = case.broken.command
    if suggested["asked"] == "narrow":
        typed += " --narrow"
    else:
        typed = re.sub(r"--dynamic \S+", f"--{suggested['asked']}", typed)
    refused, found = found_in(Form(case.broken.files, typed, ()), tmp_path)
    assert not refused, found


def test_every_code_of_what_cannot_be_traced_has_a_snippet() -> None:
    shown = {owed.code for case in CASES for owed in case.broken.owed}
    wanted = {code for code in RULES if code.startswith(("TC1", "TC2"))}
    # A trace that is wrong without a known cause, and one that fails so, are not to be had; those of
    # variants come from options, and tests/exporter/test_variants.py shows them; those of ONNX files
    # are shown in tests/onnx.
    variants = {code for code in RULES if code.startswith("TC22")}
    onnx = {code for code in RULES if code.startswith("TC13")}
    tests = [each.read_text() for each in Path(__file__).parents[1].glob("onnx/test_*.py")]
    assert all(any(code in text for text in tests) for code in onnx)
    assert wanted - shown - variants - onnx <= {"TC117", "TC190"}
    assert len(CASES) >= 60
