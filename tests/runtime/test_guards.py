"""Guards: the generated check, the walk that explains, and plain evaluation say the same."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tcexport.artifacts.contract import (
    AxisSource,
    Contract,
    ContractError,
    Dim,
    Fixed,
    Guard,
    IndexGuard,
    Part,
    TensorInput,
    ValueSource,
    checked,
)
from tcexport.artifacts.errors import GuardError
from tcexport.artifacts.expr import ExprError, evaluate
from tcexport.runtime import load
from tcexport.runtime.explain import explain, look
from tcexport.runtime.guards import compile_checks

from .bundles import GIVEN, LINE, contract_of, dim

DTYPES = ["float32", "int64", "bool", "float16"]


# --- one of each kind -----------------------------------------------------------------------------


def check(contract: Contract, *flat: Any) -> GuardError | None:
    """What a call would be told, by all ways at once."""
    contract = checked(contract)
    checks = compile_checks(contract, [])
    try:
        fast = checks.numpy(flat) is not None
    except Exception:
        fast = False
    try:
        leaves = look(contract, flat)
    except GuardError as error:
        assert not fast
        return error
    try:
        seen = checks.seen(leaves) is not None
    except Exception:
        seen = False
    try:
        explain(contract, leaves)
    except GuardError as error:
        assert not fast and not seen
        return error
    assert seen
    assert fast or not all(type(leaf) is np.ndarray for leaf in flat)
    return None


def refusal(contract: Contract, *flat: Any) -> GuardError:
    error = check(contract, *flat)
    assert error is not None
    return error


POSITION = contract_of(
    {"input_ids": TensorInput("input_ids", "int64", ("batch", "seq"))},
    [],
    [dim("batch", 0, 0, 1, 16), dim("seq", 0, 1, 1, 512)],
)


def test_a_refusal_reads_as_promised() -> None:
    error = refusal(POSITION, np.zeros((2, 600), np.int64))
    assert str(error) == (
        "[TC301] input_ids axis 1 (seq): got 600, needs seq <= 512\n"
        "  from: self.position[:seq]  (model.py:14)\n"
        "  the bundle serves: batch 1..16, seq 1..512"
    )
    assert (error.argument, error.axis, error.got, error.needs) == (
        "input_ids", 1, "600", "seq <= 512",
    )  # fmt: skip
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.axis == 1


def test_both_ends_and_the_step_of_a_range() -> None:
    contract = contract_of(
        {"x": TensorInput("x", "float32", ("b", "w"))},
        [],
        [dim("b", 0, 0, 2, 4), dim("w", 0, 1, 4, 16, step=4, step_from=LINE)],
    )
    for shape in ((2, 4), (4, 16), (3, 8)):
        assert check(contract, np.zeros(shape, np.float32)) is None
    for shape, axis, needs in (
        ((1, 4), 0, "b >= 2"),
        ((5, 4), 0, "b <= 4"),
        ((2, 6), 1, "w in 4..16:4"),
        ((4, 20), 1, "w <= 16"),
        ((2, 0), 1, "w >= 4"),
    ):
        error = refusal(contract, np.zeros(shape, np.float32))
        assert (error.code, error.axis, error.needs) == ("TC301", axis, needs)


def test_derived_axes() -> None:
    contract = contract_of(
        {
            "x": TensorInput("x", "float32", (("*", 2, "n"),)),
            "y": TensorInput("y", "float32", (("+", "n", 1),)),
        },
        [],
        [dim("n", 0, 0, 2, 50, scale=2)],
    )
    assert check(contract, np.zeros(8, np.float32), np.zeros(5, np.float32)) is None
    error = refusal(contract, np.zeros(9, np.float32), np.zeros(5, np.float32))
    assert "x axis 0 (2*n): got 9, needs 2*n = 8 (n = 4)" in str(error)
    error = refusal(contract, np.zeros(8, np.float32), np.zeros(6, np.float32))
    assert "y axis 0 (n + 1): got 6, needs n + 1 = 5 (n = 4)" in str(error)
    error = refusal(contract, np.zeros(200, np.float32), np.zeros(101, np.float32))
    assert "x axis 0 (2*n): got 200, needs n <= 50" in str(error)


def test_guards_name_their_line_and_values() -> None:
    contract = contract_of(
        {"x": TensorInput("x", "float32", ("n", "m"))},
        [],
        [dim("n", 0, 0, 1, 4096), dim("m", 0, 1, 0, None)],
        guards=(
            Guard(("==", ("%", "n", 100), 0), LINE),
            Guard(("<=", ("%", "n", "m"), 4), LINE),
        ),
    )
    error = refusal(contract, np.zeros((2099, 3), np.float32))
    assert "[TC307] x axis 0 (n): got 2099, needs n % 100 == 0" in str(error)
    error = refusal(contract, np.zeros((200, 102), np.float32))
    assert "needs n % m <= 4\n  with m = 102, n = 200\n" in str(error)
    # A divisor that is not positive has no value: refused, by both.
    assert refusal(contract, np.zeros((200, 0), np.float32)).code == "TC307"


def test_values_of_inputs_are_dims_too() -> None:
    contract = contract_of(
        {"i": TensorInput("i", "int64", ()), "y": TensorInput("y", "float32", ("n",))},
        [],
        [Dim("k", ValueSource(0), 0, None, LINE, GIVEN), dim("n", 1, 0, 1, 64)],
        guards=(Guard(("<", "k", "n"), LINE),),
    )
    y = np.zeros(5, np.float32)
    assert check(contract, np.array(2), y) is None
    assert "i (k): got -1, needs k >= 0" in str(refusal(contract, np.array(-1), y))
    error = refusal(contract, np.array(7), y)
    assert "[TC307] i (k): got 7, needs k < n\n  with k = 7, n = 5" in str(error)
    assert error.argument == "i" and error.axis is None
    assert check(contract, torch.tensor(2), torch.zeros(5)) is None
    assert refusal(contract, torch.tensor(7), torch.zeros(5)).argument == "i"


def test_a_value_needs_one_element() -> None:
    contract = contract_of(
        {"i": TensorInput("i", "int64", (2,))}, [], [Dim("k", ValueSource(0), 0, 9, LINE, GIVEN)]
    )
    assert "got shape (2,), needs one element" in str(refusal(contract, np.zeros(2, np.int64)))


def test_what_divides_by_zero_has_no_value_wherever_it_stands() -> None:
    quotient = ("//", "n", "m")
    contract = contract_of(
        {"x": TensorInput("x", "int64", ("n", "m"))},
        [],
        [dim("n", 0, 0, 0, 64), dim("m", 0, 1, 0, 64)],
        index_guards=(IndexGuard(0, 0, 9, LINE, (Part(0, 0, quotient),)),),
    )
    assert check(contract, np.zeros((4, 2), np.int64)) is None
    assert refusal(contract, np.zeros((4, 0), np.int64)).code == "TC309"
    bare = checked(msgspec.structs.replace(contract, index_guards=()))
    flat = [np.zeros((4, 0), np.int64)]
    with pytest.raises(ExprError):
        compile_checks(bare, [quotient]).numpy(flat)
    with pytest.raises(
        GuardError, match=r"x axis 0 \(n\): got 4, needs a value of n // m"
    ) as error:
        explain(bare, look(bare, flat), [quotient])
    assert error.value.code == "TC307"


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
def test_indices_stay_in_their_table(dtype: str) -> None:
    contract = contract_of(
        {"ids": TensorInput("ids", dtype, ("b", "s"))},
        [],
        [dim("b", 0, 0, 0, 64), dim("s", 0, 1, 0, 512)],
        index_guards=(IndexGuard(0, 0, ("+", "s", 98), LINE),),
    )
    for good in ([[0, 100]], [[]], [[50, 3], [0, 0]]):
        assert check(contract, np.array(good, dtype)) is None
        assert check(contract, torch.tensor(good, dtype=getattr(torch, dtype))) is None
    bad = [[3, 101]] if dtype.startswith("u") else [[3, -1]]
    error = refusal(contract, np.array(bad, dtype))
    assert f"[TC309] ids: got {bad[0][1]} at [0, 1], needs 0 <= ids <= 100" in str(error)
    assert refusal(contract, np.array([[101, 0]], dtype)).code == "TC309"


def test_an_index_below_zero_may_be_allowed() -> None:
    contract = contract_of(
        {"ids": TensorInput("ids", "int64", (2,))}, [], index_guards=(IndexGuard(0, -5, 4, LINE),)
    )
    assert check(contract, np.array([-5, 4])) is None
    assert check(contract, np.array([-6, 4])) is not None
    assert check(contract, np.array([2**40, 4])) is not None


@pytest.mark.parametrize(
    ("fixed", "good", "bad"),
    [
        (None, [None], [0, False, np.zeros(1), torch.zeros(3, 4)]),
        (True, [True], [1, 1.0, None, np.bool_(True)]),
        (2, [2], [True, 2.0, 3, "2", np.int64(2)]),
        (0.0, [0.0], [-0.0, 0, False, np.float64(0)]),
        (float("nan"), [float("nan")], [0.0, None]),
        ("mean", ["mean"], ["sum", b"mean", None]),
    ],
)
def test_fixed_values_are_compared_by_type_and_value(fixed: Any, good: Any, bad: Any) -> None:
    contract = contract_of({"k": Fixed.of("k", fixed)}, [])
    for value in good:
        assert check(contract, value) is None
    for value in bad:
        error = refusal(contract, value)
        assert error.code == "TC308" and error.argument == "k"
        assert "\n" not in error.got


X = contract_of({"x": TensorInput("x", "float32", ("n",))}, [], [dim("n", 0, 0, 1, 8)])


@pytest.mark.parametrize(
    ("value", "code", "got"),
    [
        ([1.0, 2.0], "TC303", "a list"),
        (1.0, "TC303", "a float"),
        (None, "TC303", "None"),
        (np.float32(1), "TC303", "a numpy scalar (float32)"),
        (np.ma.masked_array(np.zeros(3, np.float32)), "TC303", "a masked array"),
        (torch.zeros(3, requires_grad=True), "TC303", "a tensor that requires grad"),
        (torch.zeros(3).to_sparse(), "TC303", "a Tensor that DLPack does not carry"),
        (np.zeros(3), "TC304", "float64"),
        (np.zeros(3, ">f4"), "TC304", ">f4 (not this machine's byte order)"),
        (np.zeros(3, object), "TC304", "object"),
        (np.zeros(3, bool), "TC304", "bool"),
        (np.array(["a"]), "TC304", "str32"),
        (np.zeros(3, [("a", "f4")]), "TC304", "void32"),
        (torch.zeros(3, dtype=torch.float64), "TC304", "float64"),
        (torch.zeros(3, dtype=torch.bfloat16), "TC304", "bfloat16"),
        (np.array(1.0, np.float32), "TC305", "0 axes ()"),
        (np.zeros((3, 4), np.float32), "TC305", "2 axes (3, 4)"),
        (torch.zeros(3, 4), "TC305", "2 axes (3, 4)"),
    ],
)
def test_what_is_not_the_tensor_needed(value: Any, code: str, got: str) -> None:
    error = refusal(X, value)
    assert error.code == code
    assert error.got.startswith(got)
    assert error.argument == "x" and error.axis is None


def test_a_tensor_on_another_device_is_named() -> None:
    class Elsewhere:
        """A tensor that says it lies on a GPU; its memory is never read."""

        def __dlpack__(self, **keywords: Any) -> Any:
            return np.zeros(3, np.float32).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 1)

    error = refusal(X, Elsewhere())
    assert error.code == "TC310"
    assert "x: got cuda:1, needs cpu" in str(error)


def test_hostile_contracts_are_refused() -> None:
    x = {"x": TensorInput("x", "float32", ("n",))}
    n = [dim("n", 0, 0, 1, 8)]
    deep: Any = "n"
    for _ in range(60):
        deep = ("+", deep, 1)
    for guard in (
        "n",
        ("+", "n", 1),
        ("==", "n"),
        ("==", "n", "m"),
        ("==", ("==", "n", 1), 1),
        ("and", "n", ("==", "n", 1)),
        ("==", ("__import__", "n"), 1),
        ("==", "__import__('os')", 1),
        ("==", 2**70, "n"),
        ("==", True, "n"),
        ("==", 1.5, "n"),
        ("==", deep, 1),
    ):
        with pytest.raises(ContractError):
            checked(contract_of(x, [], n, guards=(Guard(guard, LINE),)))
    big = Guard(("==", ("+", *["n"] * 64), 1), LINE)
    with pytest.raises(ContractError, match="too large"):
        compile_checks(checked(contract_of(x, [], n, guards=(big,) * 10_000)), [])
    with pytest.raises(ContractError, match="integers"):
        checked(contract_of(x, [], n, index_guards=(IndexGuard(0, 0, 1, LINE),)))


HOSTILE = st.recursive(
    st.one_of(
        st.sampled_from(
            ["n", "m", "+", "*", "//", "%", "min", "==", "<", "and", "not", "__class__"]
        ),
        st.integers(-3, 9),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
        st.none(),
        st.text(max_size=9),
    ),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=30,
)
LARGE = st.recursive(
    st.one_of(st.sampled_from(["n", "m"]), st.integers(-3, 9), st.integers(-(2**62), 2**62)),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min"]), inner, inner),
    max_leaves=40,
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_guard_data_from_a_hostile_file_is_refused_or_only_refuses_calls(
    data: st.DataObject,
) -> None:
    """Through JSON, as from a file: nothing but a ContractError at load, or a GuardError at a call."""
    hostile = data.draw(st.booleans())
    drawn = HOSTILE if hostile else LARGE
    compared = HOSTILE if hostile else st.tuples(st.sampled_from(["==", "<="]), LARGE, LARGE)
    parts = (Part(0, data.draw(drawn), data.draw(drawn)),) if data.draw(st.booleans()) else ()
    contract = contract_of(
        {
            "x": TensorInput("x", "int64", ("n", "m")),
            "y": TensorInput("y", "float32", (data.draw(drawn),)),
        },
        [],
        [dim("n", 0, 0, 0, 8), dim("m", 0, 1, 0, None)],
        guards=(Guard(data.draw(compared), LINE),),
        index_guards=(IndexGuard(0, data.draw(drawn), data.draw(drawn), LINE, parts),),
    )
    try:
        read = checked(msgspec.json.decode(msgspec.json.encode(contract), type=Contract))
        checks = compile_checks(read, [])
    except (ContractError, msgspec.ValidationError, msgspec.DecodeError):
        assert hostile
        return
    for shape in ((0, 0), (2, 3), (8, 1)):
        flat = [np.zeros(shape, np.int64), np.zeros(shape[0], np.float32)]
        try:
            answer = checks.numpy(flat)
        except Exception:
            answer = None  # the call is refused, and the closer look says why
        try:
            explain(read, look(read, flat))
        except GuardError:
            assert answer is None
        else:
            assert answer == ()


# --- drawn contracts and calls --------------------------------------------------------------------

NAMES = ["n", "m"]


def numbers(names: list[str], depth: int = 2) -> st.SearchStrategy[Any]:
    leaf: st.SearchStrategy[Any] = st.integers(-3, 12)
    if names:
        leaf = st.one_of(st.sampled_from(names), leaf)
    if not depth:
        return leaf
    inner = numbers(names, depth - 1)
    return st.one_of(
        leaf,
        st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), inner, inner),
    )


def conditions(names: list[str]) -> st.SearchStrategy[Any]:
    comparison = st.tuples(
        st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers(names), numbers(names)
    )
    return st.one_of(
        comparison,
        st.tuples(st.just("not"), comparison),
        st.tuples(st.sampled_from(["and", "or"]), comparison, comparison),
    )


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    """One or two dims read from axes, maybe one from a value; further axes, guards, index guards."""
    dims: list[Dim] = []
    shapes: list[list[Any]] = [[], []]
    for name in NAMES[: draw(st.integers(0, 2))]:
        at = draw(st.integers(0, 1))
        scale, offset = draw(st.sampled_from([(1, 0), (1, 0), (2, 0), (1, 1), (2, 1)]))
        size: Any = name
        if scale != 1:
            size = ("*", scale, size)
        if offset:
            size = ("+", size, offset)
        lo = draw(st.integers(0, 3))
        hi = draw(st.one_of(st.none(), st.integers(lo, lo + 6)))
        step = draw(st.sampled_from([1, 1, 2]))
        source = AxisSource(at, len(shapes[at]), scale, offset)
        dims.append(Dim(name, source, lo, hi, LINE, LINE, step, LINE))
        shapes[at].append(size)
    names = [found.name for found in dims]
    if draw(st.booleans()):
        dims.append(Dim("v", ValueSource(2), draw(st.integers(-2, 1)), 5, LINE, LINE))
        names.append("v")
    for shape in shapes:
        shape += draw(st.lists(numbers(names, 1), max_size=2))
    inputs = {
        "a": TensorInput("a", "float32", tuple(shapes[0])),
        "b": TensorInput("b", "int64", tuple(shapes[1])),
        "c": TensorInput("c", "int64", draw(st.sampled_from([(), (1,)]))),
        "d": Fixed.of("d", draw(st.sampled_from([None, True, 1, 1.0, "one"]))),
    }
    guards = tuple(Guard(expr, LINE) for expr in draw(st.lists(conditions(names), max_size=3)))
    index: tuple[IndexGuard, ...] = ()
    if draw(st.booleans()):
        index = (IndexGuard(1, draw(st.sampled_from([0, -1])), draw(numbers(names, 1)), LINE),)
    return checked(contract_of(inputs, [], dims, guards=guards, index_guards=index))


def directly(contract: Contract, flat: tuple[Any, ...]) -> bool:
    """Whether a call meets the contract, written down once more, as plainly as can be."""
    a, b, c, d = flat
    fixed = contract.inputs[3]
    assert isinstance(fixed, Fixed)
    if type(d) is not type(fixed.value) or d != fixed.value:
        return False
    for item, leaf in zip(contract.inputs[:3], (a, b, c), strict=True):
        assert isinstance(item, TensorInput)
        if str(leaf.dtype).removeprefix("torch.") != item.dtype or leaf.ndim != len(item.shape):
            return False
    try:
        dims: dict[str, int] = {}
        for found in contract.dims:
            leaf = flat[found.source.input]
            if isinstance(found.source, ValueSource):
                dims[found.name] = int(leaf.item())
                continue
            size = leaf.shape[found.source.axis] - found.source.offset
            dims[found.name] = size // found.source.scale
        for found in contract.dims:
            value = dims[found.name]
            if value < found.lo or (found.hi is not None and value > found.hi):
                return False
            if (value - found.lo) % found.step:
                return False
        for item, leaf in zip(contract.inputs[:3], (a, b, c), strict=True):
            assert isinstance(item, TensorInput)
            if tuple(leaf.shape) != tuple(evaluate(size, dims) for size in item.shape):
                return False
        if not all(evaluate(guard.expr, dims) for guard in contract.guards):
            return False
        for guard in contract.index_guards:
            lo, hi = evaluate(guard.lo, dims), evaluate(guard.hi, dims)
            if any(not lo <= value <= hi for value in np.asarray(b).ravel().tolist()):
                return False
        return True
    except (ExprError, ValueError, RuntimeError):
        return False


@st.composite
def calls(draw: st.DrawFn, contract: Contract) -> tuple[Any, ...]:
    """Mostly near the contract: sizes from drawn dims, then perhaps one of them off."""
    dims = {
        found.name: draw(st.integers(max(0, found.lo - 1), found.lo + 7)) for found in contract.dims
    }
    leaves: list[Any] = []
    for item in contract.inputs[:3]:
        assert isinstance(item, TensorInput)
        shape = []
        for size in item.shape:
            try:
                shape.append(min(max(evaluate(size, dims), 0), 40))
            except ExprError:
                shape.append(1)
        if draw(st.integers(0, 9)) == 0:
            shape = draw(st.lists(st.integers(0, 5), max_size=3))
        dtype = item.dtype if draw(st.integers(0, 19)) else draw(st.sampled_from(DTYPES))
        fill = dims.get("v", 0) if item.path == "c" else draw(st.integers(-2, 12))
        leaf = np.full(shape, fill).astype(dtype)
        leaves.append(torch.from_numpy(leaf) if draw(st.integers(0, 3)) == 0 else leaf)
    fixed = contract.inputs[3]
    assert isinstance(fixed, Fixed)
    others = st.sampled_from([None, True, 1, 1.0, "one"])
    leaves.append(fixed.value if draw(st.integers(0, 9)) else draw(others))
    return tuple(leaves)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_fast_check_slow_walk_and_plain_evaluation_agree(data: st.DataObject) -> None:
    contract = data.draw(contracts())
    flat = data.draw(calls(contract))
    # `check` holds the two generated checks against the walk; the walk is held against `directly`.
    error = check(contract, *flat)
    assert (error is None) == directly(contract, flat), str(error)
    if error is not None:
        assert error.argument in ("a", "b", "c", "d", "the call")
        assert str(error).startswith(f"[{error.code}] {error.argument}")


# --- asserts off ----------------------------------------------------------------------------------


def test_optimised_python_checks_the_same(added: Path) -> None:
    script = (
        "import sys, numpy as np\n"
        "from tcexport.runtime import load\n"
        "from tcexport.artifacts.errors import GuardError\n"
        "assert False, 'asserts are on'\n"
        "model = load(sys.argv[1])\n"
        "for shape in ((65, 4), (0, 4), (2, 5), (2,)):\n"
        "    try:\n"
        "        model(np.zeros(shape, np.float32))\n"
        "    except GuardError as error:\n"
        "        print(error.code)\n"
        "print(model(np.zeros((1, 4), np.float32)).tolist())\n"
    )
    answer = subprocess.run(
        [sys.executable, "-O", "-c", script, added], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split("\n")[:5] == [
        "TC301", "TC301", "TC306", "TC305", "[[0.0, 1.0, 2.0, 3.0]]",
    ]  # fmt: skip


def test_a_refused_call_runs_nothing(gathered: Path) -> None:
    model = load(gathered)
    for ids in ([[512]], [[-1]], [[10**9]], [[0, 515]]):
        with pytest.raises(GuardError, match="TC309"):
            model(np.array(ids))
        with pytest.raises(GuardError, match="TC309"):
            model(torch.tensor(ids))
    assert model.metrics.calls == 0
    assert msgspec.structs.asdict(model.contract)["index_guards"]
