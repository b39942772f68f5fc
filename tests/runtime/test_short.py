"""The short way of a call: taken where it can be, with the long way's answers, counts and errors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tcexport.artifacts.contract import ComputedGuard, TensorInput, TensorOutput
from tcexport.artifacts.errors import GuardError, InternalError, TcexportError
from tcexport.runtime import Model, load
from tcexport.runtime.tensors import aligned_empty

from .bundles import LINE, add_weight, compiled, contract_of, dim, pack
from .conftest import TABLE, WEIGHT

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
IDS = np.array([[0, 511, 3]])


def on_boundary(array: np.ndarray, offset: int = 0) -> np.ndarray:
    memory = aligned_empty((array.nbytes + 64,), np.dtype(np.uint8))[offset:]
    view = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def long(model: Model) -> Model:
    """The same model without its short ways."""
    model._shorts.clear()
    model._learn = lambda kind: None  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("to", [on_boundary, torch.from_numpy])
def test_plain_calls_take_it(
    added: Path, gathered: Path, monkeypatch: pytest.MonkeyPatch, to: Callable[..., Any]
) -> None:
    first, second = load(added), load(gathered)
    rows, ids = to(on_boundary(ROWS)), to(on_boundary(IDS))
    first(rows), second(ids)  # torch is met here
    for model in (first, second):
        monkeypatch.setattr(model, "_run", None)
    np.testing.assert_array_equal(np.asarray(first(rows)), ROWS + WEIGHT)
    taken, back, table = second(ids)
    assert type(taken) is type(back) is type(table) is type(rows)
    np.testing.assert_array_equal(np.asarray(taken), TABLE[IDS])
    np.testing.assert_array_equal(np.asarray(back), IDS)
    np.testing.assert_array_equal(np.asarray(table), TABLE)


def test_what_it_gives_back_is_the_callers_own(gathered: Path) -> None:
    model = load(gathered)
    for ids in (on_boundary(IDS), torch.from_numpy(on_boundary(IDS))):
        for _ in range(2):
            _, back, table = model(ids)
            back[0], table[...] = 77, -1
        np.testing.assert_array_equal(np.asarray(ids), IDS)
        np.testing.assert_array_equal(np.asarray(model(ids)[2]), TABLE)


def conjugate_part(rows: np.ndarray) -> torch.Tensor:
    negated = torch.complex(torch.from_numpy(rows), torch.from_numpy(-rows)).conj().imag
    assert negated.is_neg()
    return negated


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "on a boundary": lambda: on_boundary(ROWS),
    "between boundaries": lambda: on_boundary(ROWS, 16),
    "read-only": lambda: np.frombuffer(ROWS.tobytes(), np.float32).reshape(3, 4),
    "strided": lambda: np.repeat(ROWS, 2, axis=1)[:, ::2],
    "transposed": lambda: np.asfortranarray(ROWS),
    "another dtype": lambda: ROWS.astype(np.float64),
    "bfloat16": lambda: ROWS.astype(ml_dtypes.bfloat16),
    "another rank": lambda: ROWS[0],
    "too many": lambda: np.zeros((65, 4), np.float32),
    "none": lambda: ROWS[:0],
    "masked": lambda: np.ma.masked_array(ROWS),
    "byte order": lambda: ROWS.astype(">f4"),
    "a list": lambda: ROWS.tolist(),
    "torch": lambda: torch.from_numpy(ROWS.copy()),
    "torch, strided": lambda: torch.from_numpy(np.repeat(ROWS, 2, axis=1))[:, ::2],
    "torch, between boundaries": lambda: torch.from_numpy(on_boundary(ROWS, 16)),
    "torch, with a gradient": lambda: torch.from_numpy(ROWS.copy()).requires_grad_(),
    "torch, a parameter": lambda: torch.nn.Parameter(torch.from_numpy(ROWS.copy())),
    "torch, negated lazily": lambda: conjugate_part(ROWS),
    "torch, sparse": lambda: torch.from_numpy(ROWS.copy()).to_sparse(),
    "torch, meta": lambda: torch.empty((3, 4), device="meta"),
    "torch, half": lambda: torch.from_numpy(ROWS).half(),
    "torch, too many": lambda: torch.zeros((65, 4)),
    "torch, none": lambda: torch.zeros((0, 4)),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_any_argument_has_the_answer_of_the_long_way(added: Path, kind: str) -> None:
    quick, slow = load(added), long(load(added))
    quick(torch.zeros((1, 4)))  # torch is met before
    slow(torch.zeros((1, 4)))

    def outcome(model: Model) -> Any:
        argument = ARGUMENTS[kind]()
        try:
            result = model(argument)
        except TcexportError as error:
            return str(error)
        return type(result), np.asarray(result).tolist()

    assert outcome(quick) == outcome(slow)
    counted = [vars(model.metrics) | {"seconds": 0} for model in (quick, slow)]
    assert counted[0] == counted[1]


def test_torch_ids_are_looked_at(gathered: Path) -> None:
    model = load(gathered)
    model(torch.zeros((1, 1), dtype=torch.int64))
    with pytest.raises(GuardError, match="512"):
        model(torch.full((1, 3), 512))


def test_code_that_fails_is_said_as_ever_and_the_model_lives_on(tmp_path: Path) -> None:
    """The VM refuses two rows, which the contract, made by hand, does not."""

    def two_rows_fail(builder: Any) -> None:
        from tvm import relax

        x = relax.Var("x", relax.TensorType((1, 4), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                out = builder.emit_output(relax.op.add(x, x))
            builder.emit_func_output(out)

    contract = contract_of(
        {"x": TensorInput("x", "float32", ("n", 4))},
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 64)],
        computed_guards=(ComputedGuard("indices", 4, False, LINE),),
    )
    path = pack(tmp_path / "m.tcpkg", contract, {"x86-64-v3": compiled(two_rows_fail)})
    model = load(path)
    for _ in range(2):
        with pytest.raises(InternalError, match="TC601"):
            model(ROWS)
        np.testing.assert_array_equal(model(ROWS[:1]), 2 * ROWS[:1])
    assert model.metrics.calls == 2


def test_seconds_in_compiled_code_are_counted(added: Path) -> None:
    model = load(added)
    model(ROWS)
    once = model.metrics.seconds
    model(ROWS[:, ::-1])
    assert 0 < once < model.metrics.seconds < 1


def test_a_model_is_gone_with_its_last_reference(added: Path) -> None:
    gc.disable()
    try:
        model = load(added)
        model(ROWS), model(torch.from_numpy(ROWS))
        alive = weakref.ref(model)
        del model
        assert alive() is None
    finally:
        gc.enable()


def test_a_file_has_no_text_in_what_is_compiled(tmp_path: Path) -> None:
    evil = "x'); __import__('os'); ("
    contract = contract_of(
        {"x": TensorInput(evil, "float32", ("n", 4))},
        [TensorOutput(evil, "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 64)],
    )
    path = pack(tmp_path / "m.tcpkg", contract, {"x86-64-v3": compiled(add_weight)}, {"w": WEIGHT})
    np.testing.assert_array_equal(load(path)(ROWS), ROWS + WEIGHT)


def test_complex_results_go_the_long_way(tmp_path: Path) -> None:
    """Compiled code gives them as pairs of real numbers."""

    def doubled(builder: Any) -> None:
        from tvm import relax, tirx

        x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 2), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                out = builder.emit_output(relax.op.add(x, x))
            builder.emit_func_output(out)

    contract = contract_of(
        {"x": TensorInput("x", "float32", ("n", 2))},
        [TensorOutput("out", "complex64", ("n",), 0)],
        [dim("n", 0, 0, 1, 64)],
    )
    model = load(pack(tmp_path / "m.tcpkg", contract, {"x86-64-v3": compiled(doubled)}))
    pairs = np.array([[1, 2], [3, 4]], np.float32)
    for _ in range(2):
        for x in (pairs, torch.from_numpy(pairs)):
            answer = model(x)
            assert type(answer) is type(x)
            np.testing.assert_array_equal(np.asarray(answer), np.array([2 + 4j, 6 + 8j]))


def test_open_ranges_take_it_while_results_are_small(
    export_once: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 4).eval()
    path = export_once(
        "open-range", layer, (torch.randn(3, 8),),
        axes={"input": ("n", None)}, dynamic={"n": None},
    )  # fmt: skip
    model = load(path)
    went: list[int] = []
    run = model._run
    monkeypatch.setattr(model, "_run", lambda *args: went.append(len(args[1][0])) or run(*args))
    for rows in (5, 300_000, 7):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(model(x.numpy())), layer(x))
    assert went == [300_000]
