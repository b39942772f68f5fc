"""Calls: right numbers whatever the layout, results that are the caller's own, copies counted."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch

from tcexport.artifacts.contract import (
    DictNode,
    Fixed,
    Leaf,
    ListNode,
    NamedTupleNode,
    SizeOutput,
    TensorInput,
    TensorOutput,
    TupleNode,
)
from tcexport.artifacts.errors import GuardError, InternalError
from tcexport.runtime import load
from tcexport.runtime.tensors import aligned_empty

from .bundles import add_weight, compiled, contract_of, dim, multiply_and_sizes, pack
from .conftest import TABLE, WEIGHT


def aligned(array: np.ndarray) -> np.ndarray:
    memory = aligned_empty(array.shape, array.dtype)
    memory[...] = array
    return memory


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def unaligned(array: np.ndarray) -> np.ndarray:
    memory = aligned_empty((array.nbytes + 4,), np.dtype(np.uint8))[4:]
    view = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def read_only(array: np.ndarray) -> np.ndarray:
    memory = aligned(array)
    memory.flags.writeable = False
    return memory


LAYOUTS: dict[str, tuple[Any, int]] = {
    "aligned": (lambda: aligned(rows(6, 4)), 0),
    "read-only": (lambda: read_only(rows(6, 4)), 0),
    "unaligned": (lambda: unaligned(rows(6, 4)), 1),
    "transposed": (lambda: aligned(rows(4, 6)).T, 1),
    "every second column": (lambda: aligned(rows(6, 8))[:, ::2], 1),
    "reversed": (lambda: aligned(rows(6, 4))[::-1], 1),
    "broadcast": (lambda: np.broadcast_to(aligned(rows(1, 4)), (6, 4)), 1),
    "read-only and strided": (lambda: read_only(rows(6, 8))[:, 4:], 1),
    "one row of a strided array": (lambda: aligned(rows(6, 4))[::2][:1], 0),
    "a memmap's subclass": (lambda: aligned(rows(6, 4)).view(np.memmap), 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_numbers(added: Path, layout: str) -> None:
    make, copies = LAYOUTS[layout]
    x = make()
    model = load(added)
    for _ in range(3):
        np.testing.assert_array_equal(model(x), np.asarray(x) + WEIGHT)
    assert model.metrics.calls == 3
    assert model.metrics.copies == 3 * copies
    assert model.metrics.copied_bytes == 3 * copies * x.size * 4


@pytest.mark.parametrize("layout", ["aligned", "transposed", "every second column"])
def test_torch_tensors_come_back_as_torch_tensors(added: Path, layout: str) -> None:
    make, copies = LAYOUTS[layout]
    x = torch.from_numpy(make())
    model = load(added)
    y = model(x)
    assert isinstance(y, torch.Tensor)
    torch.testing.assert_close(y, x + torch.from_numpy(WEIGHT), rtol=0, atol=0)
    assert model.metrics.copies == copies


def test_a_torch_parameter_must_be_detached(added: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 4))
    model = load(added)
    with pytest.raises(GuardError, match=r"TC303.*x.*requires grad(.|\n)*detach\(\)"):
        model(parameter)
    assert isinstance(model(parameter.detach()), torch.Tensor)


def test_a_lazily_negated_tensor_is_not_read_without_its_sign(added: Path) -> None:
    negated = torch.complex(torch.zeros(2, 4), torch.ones(2, 4)).conj().imag
    assert negated.is_neg()
    with pytest.raises(GuardError, match="TC303"):
        load(added)(negated)


class Producer:
    """A library of its own that speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_any_dlpack_producer_is_read(added: Path) -> None:
    x = rows(3, 4)
    y = load(added)(Producer(x))
    assert not isinstance(y, np.ndarray)
    np.testing.assert_array_equal(np.from_dlpack(y), x + WEIGHT)


def test_results_are_writable_and_the_callers_own(added: Path) -> None:
    model = load(added)
    x = rows(3, 4)
    first = model(x)
    kept = first.copy()
    for value in range(20):
        model(np.full((3, 4), value, np.float32))
    np.testing.assert_array_equal(first, kept)
    first[...] = 7
    np.testing.assert_array_equal(model(x), kept)
    del model
    gc.collect()
    assert first.sum() == 7 * 12


def test_arguments_and_weights_that_come_back_are_copies(gathered: Path) -> None:
    model = load(gathered)
    for ids in (aligned(np.array([[1, 5]])), unaligned(np.array([[1, 5]]))):
        found, same, table = model(ids)
        np.testing.assert_array_equal(found, TABLE[ids])
        np.testing.assert_array_equal(same, ids)
        np.testing.assert_array_equal(table, TABLE)
        same[...] = 3
        table[...] = 0
        np.testing.assert_array_equal(ids, [[1, 5]])
        again = model(np.array([[2, 2]]))
        np.testing.assert_array_equal(again[2], TABLE)
        np.testing.assert_array_equal(same, [[3, 3]])


def test_empty_tensors_are_served_where_the_range_allows(gathered: Path) -> None:
    found, same, _ = load(gathered)(np.zeros((2, 0), np.int64))
    assert found.shape == (2, 0, 8)
    assert same.shape == (2, 0)
    found, same, _ = load(gathered)(torch.zeros((2, 0), dtype=torch.int64))
    assert found.shape == (2, 0, 8)


def test_sizes_reach_the_compiled_code_and_the_results(tmp_path: Path) -> None:
    contract = contract_of(
        {
            "x": TensorInput("x", "float32", ("n", "k")),
            "y": TensorInput("y", "float32", ("k", "m")),
            "flag": Fixed.of("flag", True),
        },
        [
            TensorOutput("xy", "float32", ("n", "m"), 0),
            TensorOutput("ones", "float32", (("*", "n", 2),), 1),
            SizeOutput("size", ("+", "n", "m")),
            Fixed.of("name", "product"),
        ],
        [dim("n", 0, 0, 1, 512), dim("k", 0, 1, 1, 64), dim("m", 1, 1, 1, None)],
        result=DictNode(
            ("xy", "rest"),
            (Leaf(0), NamedTupleNode("Rest", ("ones", "more"), (Leaf(1), ListNode(
                (Leaf(2), TupleNode((Leaf(3),)))
            )))),
        ),
    )  # fmt: skip
    path = pack(
        tmp_path / "m.tcpkg",
        contract,
        {"x86-64-v3": compiled(multiply_and_sizes)},
        sizes=(("*", "n", 2),),
        results=2,
    )
    model = load(path, num_threads=2)
    for n, k, m in ((1, 1, 1), (300, 33, 17), (512, 64, 200), (1, 64, 3)):
        x, y = rows(n, k), rows(k, m)
        result = model(x, y=y)
        np.testing.assert_allclose(result["xy"], x @ y, rtol=1e-4, atol=1e-4)
        assert result["rest"]._fields == ("ones", "more")
        assert result["rest"].ones.shape == (2 * n,)
        assert result["rest"].more == [n + m, ("product",)]
    with pytest.raises(GuardError, match=r"TC306.*y axis 0 \(k\): got 4, needs k = 3"):
        model(rows(2, 3), rows(4, 5))
    with pytest.raises(GuardError, match=r"TC308.*flag: got 1 \(int\), needs True \(bool\)"):
        model(rows(2, 3), rows(3, 5), 1)


def test_bfloat16_goes_in_and_out_by_its_bits(tmp_path: Path) -> None:
    def build(builder: Any) -> None:
        from tvm import relax, tirx

        n = tirx.Var("n", "int64")
        x = relax.Var("x", relax.TensorType((n,), "bfloat16"))
        w = relax.Var("w", relax.TensorType((1,), "bfloat16"))
        with builder.function("main", [x, w]):
            with builder.dataflow():
                out = builder.emit_output(relax.op.concat([x, w], axis=0))
            builder.emit_func_output(out)

    contract = contract_of(
        {"x": TensorInput("x", "bfloat16", ("n",))},
        [TensorOutput("out", "bfloat16", (("+", "n", 1),), 0)],
        [dim("n", 0, 0, 1, 8)],
    )
    weight = np.array([0.5], ml_dtypes.bfloat16)
    path = pack(tmp_path / "m.tcpkg", contract, {"x86-64-v3": compiled(build)}, {"w": weight})
    model = load(path)
    x = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    for given in (x, np.repeat(x, 2)[::2], unaligned(x)):
        answer = model(given)
        assert answer.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(answer, [1.5, -2, 3, 0.5])
    torch_answer = model(torch.tensor([1.5, -2, 3], dtype=torch.bfloat16))
    assert torch_answer.dtype == torch.bfloat16
    assert torch_answer.tolist() == [1.5, -2, 3, 0.5]
    with pytest.raises(GuardError, match=r"TC304.*got uint16, needs bfloat16"):
        model(x.view(np.uint16))


def test_a_failing_kernel_is_an_error_and_the_next_call_is_right(tmp_path: Path) -> None:
    """The contract says more than the code can do: TVM itself refuses the shape."""

    contract = contract_of(
        {"x": TensorInput("x", "float32", ("n", "m"))},
        [TensorOutput("out", "float32", ("n", "m"), 0)],
        [dim("n", 0, 0, 1, 64), dim("m", 0, 1, 1, 64)],
    )
    path = pack(tmp_path / "m.tcpkg", contract, {"x86-64-v3": compiled(add_weight)}, {"w": WEIGHT})
    model = load(path)
    for _ in range(3):
        with pytest.raises(InternalError, match="TC601") as caught:
            model(rows(2, 5))
        assert "m.tcpkg" in str(caught.value)
        np.testing.assert_array_equal(model(rows(2, 4)), rows(2, 4) + WEIGHT)


def test_threads_share_a_model(added: Path) -> None:
    model = load(added)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        try:
            for _ in range(200):
                x = generator.standard_normal((int(generator.integers(1, 65)), 4))
                x = x.astype(np.float32)
                np.testing.assert_array_equal(model(x), x + WEIGHT)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert model.metrics.calls == 8 * 200


def test_refused_calls_are_counted_by_code(added: Path) -> None:
    model = load(added)
    for value in (rows(65, 4), rows(0, 4), rows(3, 5), [1.0], None):
        with pytest.raises(GuardError):
            model(value)
    with pytest.raises(GuardError):
        model()
    assert model.metrics.violations == {"TC301": 2, "TC306": 1, "TC303": 2, "TC302": 1}
    assert model.metrics.calls == 0


def test_two_bundles_and_one_bundle_twice(added: Path, gathered: Path) -> None:
    one, two, three = load(added), load(gathered), load(added)
    x, ids = rows(3, 4), np.array([[0, 511]])
    for _ in range(3):
        np.testing.assert_array_equal(one(x), x + WEIGHT)
        np.testing.assert_array_equal(two(ids)[0], TABLE[ids])
        np.testing.assert_array_equal(three(x), x + WEIGHT)
    del one
    gc.collect()
    np.testing.assert_array_equal(three(x), x + WEIGHT)


def test_every_library_gets_its_own_code(tmp_path: Path, code: bytes) -> None:
    """Descriptor numbers come again; the loader must not take a new file for an old one."""
    models = []
    for number in range(6):
        contract = contract_of(
            {"x": TensorInput("x", "float32", ("n", 4))},
            [TensorOutput("out", "float32", ("n", 4), 0)],
            [dim("n", 0, 0, 1, 64)],
        )

        def build(builder: Any, number: int = number) -> None:
            from tvm import relax, tirx

            n = tirx.Var("n", "int64")
            x = relax.Var("x", relax.TensorType((n, 4), "float32"))
            with builder.function("main", [x]):
                with builder.dataflow():
                    out = builder.emit_output(
                        relax.op.add(x, relax.const(float(number), "float32"))
                    )
                builder.emit_func_output(out)

        path = pack(tmp_path / f"{number}.tcpkg", contract, {"x86-64-v3": compiled(build)})
        models.append(load(path))
    x = rows(2, 4)
    for number, model in enumerate(models):
        np.testing.assert_allclose(model(x), x + number)


def test_metrics_start_anew_with_each_load(added: Path) -> None:
    model = load(added)
    model(rows(2, 4))
    assert load(added).metrics == type(model.metrics)()
    assert msgspec.structs.asdict(model.target)["level"] == "x86-64-v3"
