"""The user's file: which model it means, how it is run, and how its failures are told."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from tcexport import UsageError
from tcexport.exporter.export import check
from tcexport.exporter.options import dynamic_from_python
from tcexport.exporter.source import Source, load_source, source_in_memory

NET = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1
"""


@pytest.fixture(autouse=True)
def _same_imports_afterwards() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if "pytest" in file:  # below tmp_path
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "model.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return str(path)


def load(folder: Path, text: str, *, attribute: str = "") -> Source:
    return load_source(write(folder, text) + attribute, inputs=["x=float32[2,3]"])


def refusal(folder: Path, text: str, *, attribute: str = "") -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(folder, text, attribute=attribute)
    return caught.value


@pytest.mark.parametrize(
    "ending",
    [
        "model = Net()",
        "model = Net",
        "def model(): return Net()",
        "model = lambda: Net()",
        "",
    ],
    ids=["instance", "class", "factory", "lambda", "only class"],
)
def test_the_model_is_found(tmp_path: Path, ending: str) -> None:
    source = load(tmp_path, NET + ending)
    assert source.name == "Net"
    assert torch.equal(source.module(torch.zeros(2)), torch.ones(2))
    assert source.sha256 == hashlib.sha256((tmp_path / "model.py").read_bytes()).hexdigest()
    assert not source.module.training


def test_train_leaves_the_mode_alone(tmp_path: Path) -> None:
    path = write(tmp_path, NET)
    assert load_source(path, inputs=["x=float32[2]"], train=True).module.training


@pytest.mark.parametrize("name", ["Net", "made", "ready"])
def test_an_object_can_be_named_after_a_colon(tmp_path: Path, name: str) -> None:
    text = NET + "class Other(Net): pass\ndef made(): return Net()\nready = Net()\n"
    assert load(tmp_path, text, attribute=f":{name}").name == "Net"


def test_a_misspelt_class_is_answered_with_the_nearest(tmp_path: Path) -> None:
    error = refusal(tmp_path, NET, attribute=":Nett")
    assert error.code == "TC002"
    assert "defines no Nett" in str(error) and "nn.Module classes in it: Net" in str(error)
    assert "model.py:Net" in error.diagnostics[0].tries[0]


def test_imported_classes_are_not_candidates(tmp_path: Path) -> None:
    assert load(tmp_path, "from torch.nn import Linear, ReLU" + NET).name == "Net"


def test_a_class_that_is_part_of_the_model_is_no_second_candidate(tmp_path: Path) -> None:
    text = """
    import torch
    class Block(torch.nn.Module):
        def __init__(self, width): super().__init__()
        def forward(self, x): return x
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(3)
        def forward(self, x): return self.block(x)
    """
    assert load(tmp_path, text).name == "Net"


def test_a_block_is_not_taken_for_the_net_that_needs_arguments(tmp_path: Path) -> None:
    text = """
    import torch
    class Block(torch.nn.Module):
        def forward(self, x): return x
    class Net(torch.nn.Module):
        def __init__(self, width): super().__init__()
        def forward(self, x): return Block()(x)
    """
    error = refusal(tmp_path, text)
    assert error.code == "TC002"
    assert "2 classes could be it" in str(error)
    assert "classes: Block(), Net(width)" in str(error)
    assert "model = Net(width=…) at module level" in str(error)


def test_several_classes_are_all_listed(tmp_path: Path) -> None:
    text = "import torch\nclass A(torch.nn.Module): pass\nclass B(torch.nn.Module): pass\n"
    error = refusal(tmp_path, text)
    assert "classes: A(), B()" in str(error)
    assert [each.rpartition(":")[2] for each in error.diagnostics[0].tries[:2]] == ["A", "B"]


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("x = 1", "defines no `model` and no torch.nn.Module class"),
        ("model = 3", "model is of type int, not a torch.nn.Module"),
        ("model = dict", "is a class, but not one of torch.nn.Module's"),
        ("def model(): return 3", "model() gave a value of type int, not a torch.nn.Module"),
        ("def model(width): return 3", "cannot be made without arguments: it needs width"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, ending: str, said: str) -> None:
    error = refusal(tmp_path, ending)
    assert error.code == "TC002"
    assert said in str(error)


# --- example inputs -------------------------------------------------------------------------------

PAIR = """
import torch
class Pair(torch.nn.Module):
    def forward(self, a, b=None): return a
a = torch.zeros(2, 3)
"""


@pytest.mark.parametrize(
    ("written", "args", "kwargs"),
    [
        ("(a,)", 1, []),
        ("(a, a)", 2, []),
        ("a", 1, []),
        ('{"b": a, "a": a}', 0, ["b", "a"]),
        ("lambda: (a, None)", 2, []),
        ("lambda: a", 1, []),
    ],
)
def test_example_inputs_in_each_form(
    tmp_path: Path, written: str, args: int, kwargs: list[str]
) -> None:
    source = load_source(write(tmp_path, PAIR + f"example_inputs = {written}"))
    assert (len(source.args), list(source.kwargs)) == (args, kwargs)
    assert source.axes["a"] == (None, None)


def test_a_list_of_example_inputs_is_refused_with_both_forms(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_source(write(tmp_path, PAIR + "example_inputs = [a]"))
    assert caught.value.code == "TC005"
    assert "example_inputs is of type list, not a tuple of arguments" in str(caught.value)
    assert "try: example_inputs = (ids, mask)" in str(caught.value)


def test_a_dict_that_is_one_argument_is_told_from_keyword_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_source(write(tmp_path, PAIR + 'example_inputs = {"user": a, "item": a}'))
    message = str(caught.value)
    assert caught.value.code == "TC005"
    assert "forward(a, b=None) has no parameter user, item" in message
    assert "try: example_inputs = ({…},) to pass the dict as one argument" in message


def test_no_example_inputs_says_what_to_write_and_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_source(write(tmp_path, PAIR))
    message = str(caught.value)
    assert caught.value.code == "TC004"
    assert "has no example inputs for forward(a, b=None)" in message
    assert "model.py:4   def forward(self, a, b=None): return a" in message
    assert "try: example_inputs = (a,) in the source" in message
    assert "try: --input 'a=float32[batch=4,8]'" in message


def test_an_input_option_for_one_of_two_parameters_names_the_other(tmp_path: Path) -> None:
    text = "import torch\nclass N(torch.nn.Module):\n  def forward(self, a, b): return a\n"
    with pytest.raises(UsageError) as caught:
        load_source(write(tmp_path, text), inputs=["a=float32[2]"])
    assert caught.value.code == "TC004"
    assert "no example for b of forward(a, b)" in str(caught.value)


def test_an_input_option_for_no_parameter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_source(write(tmp_path, NET), inputs=["xx=float32[2]"])
    assert caught.value.code == "TC006"
    assert "forward(x) has no parameter xx" in str(caught.value)
    assert caught.value.diagnostics[0].tries == ("--input x=…",)


def test_too_many_example_inputs_point_at_forward(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_source(write(tmp_path, PAIR + "example_inputs = (a, a, a)"))
    assert caught.value.code == "TC005"
    assert "do not fit forward(a, b=None) of Pair: too many positional" in str(caught.value)
    assert caught.value.diagnostics[0].location is not None
    assert caught.value.diagnostics[0].location.line == 4


# --- running the file -----------------------------------------------------------------------------


def test_the_files_neighbours_are_what_it_imports(tmp_path: Path) -> None:
    """Also those that are called like rooms of this package, and those of torch's own name."""
    for name in ("runtime", "tools", "exporter", "artifacts", "torch_utils"):
        write(tmp_path, f"who = 'the user: {name}'", f"{name}.py")
    text = "import runtime, tools, exporter, artifacts, torch_utils" + NET
    text += "model = Net()\nmodel.who = [m.who for m in"
    text += " (runtime, tools, exporter, artifacts, torch_utils)]"
    who = load(tmp_path, text).module.who
    assert who == [
        f"the user: {name}" for name in ("runtime", "tools", "exporter", "artifacts", "torch_utils")
    ]


def test_imports_inside_of_forward_work_after_loading(tmp_path: Path) -> None:
    write(tmp_path, "STEP = 5", "lazy_neighbour.py")
    text = """
    import torch
    class Net(torch.nn.Module):
        def forward(self, x):
            from lazy_neighbour import STEP
            return x + STEP
    """
    before = list(sys.path)
    source = load(tmp_path, text)
    assert sys.path[: len(before)] == before, "nothing goes before what was there"
    assert source.module(torch.zeros(1)).item() == 5


def test_a_neighbour_that_another_module_hides_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "x = 1", "numpy.py")
    error = refusal(tmp_path, "import numpy" + NET)
    assert error.code == "TC003"
    assert "`import numpy` does not find the" in str(error)
    assert "model.py:1   import numpy" in str(error)
    assert "try: rename" in str(error)


def test_main_blocks_do_not_run_and_arguments_are_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tcexport", "model.py", "--dynamic", "n"])
    text = NET + (
        "import argparse\nargparse.ArgumentParser().parse_args()\n"
        "if __name__ == '__main__': raise RuntimeError('ran as a script')\n"
    )
    assert load(tmp_path, text).name == "Net"
    assert sys.argv[0] == "tcexport"


def test_classes_of_the_file_can_be_pickled(tmp_path: Path) -> None:
    module = load(tmp_path, NET).module
    assert type(pickle.loads(pickle.dumps(module))) is type(module)


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    write(tmp_path, NET.replace("+ 1", "+ 2"), "b/model.py")
    first = load(tmp_path / "b", NET.replace("+ 1", "+ 2"))
    second = load(tmp_path, NET)
    assert [m(torch.zeros(1)).item() for m in (first.module, second.module)] == [2, 1]
    assert type(first.module).__module__ != type(second.module).__module__


def test_a_file_that_changes_within_a_second_is_read_anew(tmp_path: Path) -> None:
    for step in ("1", "2", "3"):
        source = load(tmp_path, NET.replace("+ 1", f"+ {step}"))
        assert source.module(torch.zeros(1)).item() == int(step)


# --- failures -------------------------------------------------------------------------------------


def test_an_exception_comes_with_the_users_own_traceback(tmp_path: Path) -> None:
    write(tmp_path, "def look(d):\n    return d['b']\n", "failing_neighbour.py")
    error = refusal(tmp_path, "from failing_neighbour import look\n\nvalue = look({'a': 1})\n")
    message = str(error)
    assert error.code == "TC003"
    assert "model.py raised KeyError: 'b'" in message
    assert "model.py:3   value = look({'a': 1})" in message
    assert "failing_neighbour.py" in message and "return d['b']" in message
    for ours in ("userfile.py", "importlib", "source.py", "exec(code"):
        assert ours not in message
    assert error.__cause__ is None


def test_both_halves_of_a_chained_exception_are_the_users(tmp_path: Path) -> None:
    text = "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('no') from e\n"
    message = str(refusal(tmp_path, text))
    assert "ZeroDivisionError" in message and "raise ValueError('no') from e" in message
    assert "userfile.py" not in message


def test_a_model_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    text = """
    import torch
    class Net(torch.nn.Module):
        def __init__(self):
            self.layer = torch.nn.Linear(2, 2)
    """
    message = str(refusal(tmp_path, text))
    assert "model.py: Net() raised AttributeError: cannot assign module before" in message
    assert "model.py:5   self.layer = torch.nn.Linear(2, 2)" in message


@pytest.mark.parametrize(
    ("text", "said", "tried"),
    [
        ("def f(:\n  pass", "is not valid Python", None),
        ("import sys\nsys.exit(3)", "ended the process: SystemExit(3)", "__main__"),
        ("from .helpers import x", "relative import", "from helpers import x"),
        ("import surely_not_installed", "nor installed for", "pip install surely_not_installed"),
        ("import surely_not_installed.part", "nor installed", "install surely_not_installed"),
        ("import nunpy as np", "nor installed for", "import numpy"),
        ("import colections", "nor installed for", "import collections"),
        ("import torchvisoin_models", "nor installed for", "pip install torchvisoin_models"),
        ("raise RuntimeError", "raised RuntimeError", None),
    ],
)
def test_each_way_to_fail_says_where_and_what_to_do(
    tmp_path: Path, text: str, said: str, tried: str | None
) -> None:
    error = refusal(tmp_path, text)
    assert error.code == "TC003"
    assert said in str(error)
    assert error.diagnostics[0].location is not None
    assert error.diagnostics[0].location.file.endswith("model.py")
    if tried is not None:
        assert tried in error.diagnostics[0].tries[0]


def test_a_package_in_the_current_folder_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "", "my_layers/__init__.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", ".")])
    error = refusal(tmp_path / "nets", "import my_layers")
    assert "there is one in the current folder" in str(error)
    assert error.diagnostics[0].tries == ("PYTHONPATH=. tcexport …",)


def test_ctrl_c_in_the_file_is_ctrl_c(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, "raise KeyboardInterrupt")


def test_a_failed_file_leaves_nothing_behind(tmp_path: Path) -> None:
    path, modules = list(sys.path), set(sys.modules)
    refusal(tmp_path, "raise RuntimeError")
    assert sys.path == path
    assert not [name for name in set(sys.modules) - modules if name.startswith("tcexport_source")]


# --- other sources --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said", "tried"),
    [
        ("modle.py", "there is no file", "model.py"),
        ("none/model.py", "there is no folder", None),
        (".", "is a folder, not a source", "model.py"),
        ("model.py:", "no class after the colon", "model.py:MyNet"),
        ("net.pt", "it holds weights, not the model's code", "load_state_dict"),
        ("net.tcpkg", "it is a finished bundle", "tcexport inspect"),
        ("net.txt", "a source is a .py file", None),
        ("bad.pt2", "is not a program that torch", "torch.export.save"),
    ],
)
def test_what_is_no_source_is_refused(
    tmp_path: Path, name: str, said: str, tried: str | None
) -> None:
    write(tmp_path, NET)
    for each in ("net.pt", "net.tcpkg", "net.txt", "bad.pt2"):
        write(tmp_path, "something", each)
    with pytest.raises(UsageError) as caught:
        load_source(str(tmp_path / name) if name != "." else str(tmp_path))
    assert caught.value.code == "TC001"
    assert said in str(caught.value)
    if tried is not None:
        assert tried in caught.value.diagnostics[0].tries[0]


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: dict[str, torch.Tensor], *, k: int = 1) -> torch.Tensor:
        return x + k * y["a"]


def test_a_saved_program_comes_with_its_example(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    program = torch.export.export(Add(), (x, {"a": x}), {"k": 3})
    torch.export.save(program, tmp_path / "add.pt2")
    source = load_source(str(tmp_path / "add.pt2"), axes=["x=n,_", "y.a=n,_"])
    assert source.axes == {"x": ("n", None), "y.a": ("n", None)}
    assert torch.equal(source.module(*source.args, **source.kwargs), 4 * x)
    assert not source.module.training


def test_a_module_in_memory_is_a_source() -> None:
    x = torch.zeros(2, 3)
    source = source_in_memory(Add(), (x,), {"y": {"a": x}}, {"x": ("n", 3), "y.a": ("n", None)})
    assert source.axes == {"x": ("n", 3), "y.a": ("n", None)}
    assert (source.name, source.file, source.sha256) == ("Add", None, "")


@pytest.mark.parametrize(
    ("module", "args", "code", "said"),
    [
        (Add, (), "TC002", "a class: make one of it first"),
        (len, (), "TC002", "not a torch.nn.Module"),
        (Add(), [torch.zeros(1)], "TC005", "args is of type list, not a tuple"),
        (Add(), torch.zeros(1), "TC005", "args is of type Tensor, not a tuple"),
    ],
)
def test_what_is_no_source_in_memory_is_refused(
    module: object, args: object, code: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        source_in_memory(module, args)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert said in str(caught.value)


class Product(torch.nn.Module):
    def forward(self, x, rest):
        return x @ rest["y"]


def test_a_saved_program_keeps_its_dynamic_axes_and_ranges(tmp_path: Path) -> None:
    """Torch does not keep the names: an axis is called by its input and number."""
    batch, seq = torch.export.Dim("batch", min=2, max=8), torch.export.Dim("seq", max=64)
    program = torch.export.export(
        Product(),
        (torch.randn(3, 4), {"y": torch.randn(4, 5)}),
        dynamic_shapes=({0: batch, 1: seq}, {"y": {0: seq}}),
    )
    path = str(tmp_path / "product.pt2")
    torch.export.save(program, path)
    source = load_source(path)
    assert source.axes == {"x": ("x_0", "x_1"), "rest.y": ("x_1", None)}
    assert source.dynamic == ("x_0", "x_1")
    report = check(source, dynamic={})
    assert {dim.name: dim.span() for dim in report.dims} == {"x_0": "1..8", "x_1": "1..64"}
    report = check(source, dynamic=dynamic_from_python({"x_0": (2, 4)}))
    assert {dim.name: dim.span() for dim in report.dims} == {"x_0": "2..4", "x_1": "1..64"}
    with pytest.raises(UsageError, match=r"no axis is called batch") as error:
        check(source, dynamic=dynamic_from_python({"batch": (1, 4)}))
    assert "axes: x (x_0, x_1), rest.y (x_1, _)" in str(error.value)
    named = load_source(path, axes=["x=b,s", "rest.y=s,_"])
    assert named.dynamic == ()
    report = check(named, dynamic=dynamic_from_python({"b": (1, 8), "s": None}))
    assert {dim.name: dim.span() for dim in report.dims} == {"b": "1..8", "s": "1..64"}
