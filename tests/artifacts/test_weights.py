"""Weights: what is written, other readers read; what is damaged is refused; nothing is copied."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tcexport.artifacts.weights import (
    PADDING_PREFIX,
    Weight,
    WeightsError,
    read_weights,
    write_weights,
)

DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_]
QUIET = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, np.ndarray]:
    names = draw(st.lists(st.text("abcé.0", min_size=1), unique=True, max_size=6))
    return {
        name: draw(
            hnp.arrays(draw(st.sampled_from(DTYPES)), hnp.array_shapes(min_dims=0, min_side=0))
        )
        for name in names
        if not name.startswith(PADDING_PREFIX)
    }


@QUIET
@given(tensors())
def test_the_safetensors_library_reads_what_is_written(
    tmp_path: Path, written: dict[str, np.ndarray]
) -> None:
    write_weights(tmp_path / "w", written)
    theirs = safetensors.numpy.load_file(tmp_path / "w")
    theirs = {name: data for name, data in theirs.items() if not name.startswith(PADDING_PREFIX)}
    ours = read_weights(memoryview((tmp_path / "w").read_bytes()))
    assert list(ours) == list(written)
    for name, data in written.items():
        np.testing.assert_array_equal(theirs[name], data)
        np.testing.assert_array_equal(ours[name].data, data)
        assert theirs[name].shape == ours[name].data.shape == data.shape
        assert ours[name].dtype == data.dtype.name


@QUIET
@given(tensors())
def test_every_tensor_is_aligned_and_a_view_of_the_file(
    tmp_path: Path, written: dict[str, np.ndarray]
) -> None:
    write_weights(tmp_path / "w", written)
    content = np.frombuffer((tmp_path / "w").read_bytes(), np.uint8)
    for weight in read_weights(memoryview(content)).values():
        if weight.data.size:
            assert np.shares_memory(weight.data, content)
            assert (weight.data.ctypes.data - content.ctypes.data) % 64 == 0
        assert not weight.data.flags.writeable


def test_bfloat16_comes_back_as_its_bits(tmp_path: Path) -> None:
    data = np.arange(5).astype(ml_dtypes.bfloat16)
    write_weights(tmp_path / "a", {"w": data})
    write_weights(tmp_path / "b", {"w": Weight(data.view(np.uint16), "bfloat16")})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    weight = read_weights(memoryview((tmp_path / "a").read_bytes()))["w"]
    assert weight.dtype == "bfloat16"
    np.testing.assert_array_equal(weight.data, data.view(np.uint16))


def test_equal_tensors_give_equal_bytes_whatever_their_layout(tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_weights(tmp_path / "a", {"w": data})
    write_weights(tmp_path / "b", {"w": np.asfortranarray(data)})
    write_weights(tmp_path / "c", {"w": data.astype(">f4")})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("name", ["__metadata__", ".padding.0"])
def test_reserved_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        write_weights(tmp_path / "w", {name: np.zeros(1)})


def test_a_dtype_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="complex256"):
        write_weights(tmp_path / "w", {"w": np.zeros(1, np.clongdouble)})


def file_of(header: object, data: bytes) -> memoryview:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return memoryview(struct.pack("<Q", len(text)) + text + data)


def tensor(start: int, end: int, shape: list[int], dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": tensor(0, 4, [4])}, b"123", "cut short"),
        ({"a": tensor(0, 4, [4])}, b"12345", "no tensor"),
        ({"a": tensor(0, 4, [4]), "b": tensor(2, 6, [4])}, b"123456", "overlap"),
        ({"a": tensor(64, 68, [4])}, bytes(68), "hole"),
        ({"a": tensor(0, 4, [5])}, b"1234", "do not agree"),
        ({"a": tensor(0, 4, [-4])}, b"1234", "bad shape"),
        ({"a": tensor(0, 4, [2**61, 0, 2**61])}, b"1234", "do not agree"),
        ({"a": tensor(0, 4, [4], "X9")}, b"1234", "unknown dtype"),
        ({"a": tensor(0, 3, [3]), "b": tensor(3, 4, [1])}, b"1234", "aligned"),
        ({"a": {**tensor(0, 4, [4]), "more": 1}}, b"1234", "cannot be read"),
        ({"a": 3}, b"", "cannot be read"),
        ([], b"", "not a JSON object"),
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}', b"", "twice"),
        (b'{"a":' * 100_000, b"", "cannot be read"),
        (b'{"a":{"dtype":"U8","shape":[1e400],"data_offsets":[0,0]}}', b"", "cannot be read"),
        (b"{", b"", "cannot be read"),
        (b'{"\xff": 1}', b"", "cannot be read"),
    ],
)
def test_damaged_files_are_refused(header: object, data: bytes, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read_weights(file_of(header, data))


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_arbitrary_bytes_give_a_weights_error_or_tensors(content: bytes, length: int) -> None:
    for attempt in (content, struct.pack("<Q", length) + content, file_of(content, b"")):
        with contextlib.suppress(WeightsError):
            read_weights(memoryview(attempt))
