"""The safetensors reader against the safetensors library's writer, and every refusal."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from legato.core.errors import CheckpointError
from legato.weights.safetensors import SafetensorsFile


def file_bytes(header: Any, data: bytes = bytes(16)) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def opened(tmp_path: Path, raw: bytes) -> SafetensorsFile:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    return SafetensorsFile(path)


def test_round_trip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {
        "matrix": rng.standard_normal((3, 5)).astype(np.float32),
        "half": rng.standard_normal((4, 7)).astype(np.float16),
        "vector": rng.standard_normal(9).astype(np.float32),
        "cube": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "scalar": np.array(2.5, np.float32),
        "naïve\n": np.ones(1, np.float32),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(values, path, metadata={"format": "pt"})
    file = SafetensorsFile(path)
    assert file.tensors().keys() == values.keys()
    for name, value in values.items():
        raw = file.read(name)
        assert raw.info.shape == value.shape
        assert raw.info.dtype == {"float32": "F32", "float16": "F16"}[value.dtype.name]
        assert raw.data.shape[0] == np.prod(value.shape[:-1], dtype=int)
        assert raw.data.tobytes() == value.tobytes()
        assert not raw.data.flags.writeable


def test_bf16(tmp_path: Path) -> None:
    raw = np.arange(6, dtype=np.uint16)
    file = opened(tmp_path, file_bytes({"b": entry("BF16", [2, 3], [0, 12])}, raw.tobytes()))
    with safetensors.safe_open(file.path, "np") as theirs:
        assert theirs.get_slice("b").get_dtype() == "BF16"
    tensor = file.read("b")
    assert (tensor.info.dtype, tensor.info.shape) == ("BF16", (2, 3))
    assert tensor.data.view(np.uint16).tolist() == [[0, 1, 2], [3, 4, 5]]


REFUSED = {
    "empty": (b"", "the file is empty"),
    "no length": (b"\x10\0\0", "cut off or not a safetensors file: 3 bytes"),
    "header past the end": (struct.pack("<Q", 100) + b"{}", "a header of 100 bytes stated"),
    "length overflows": (struct.pack("<Q", 2**64 - 1) + b"{}", "cut off or not a safetensors file"),
    "not JSON": (file_bytes(b"{]"), "the header is not valid JSON"),
    "not UTF-8": (file_bytes(b'{"\xff": 1}'), "the header is not valid JSON"),
    "deep JSON": (file_bytes(b"[" * 100_000), "the header is not valid JSON"),
    "long number": (file_bytes(b'{"x": ' + b"9" * 5000 + b"}"), "the header is not valid JSON"),
    "not an object": (file_bytes([1]), "the header is not a JSON object"),
    "tensor twice": (
        file_bytes(b'{"x": %b, "x": %b}' % ((json.dumps(entry()).encode(),) * 2)),
        "key 'x' occurs twice",
    ),
    "entry is a list": (file_bytes({"x": [1]}), r"tensor x: the header entry \[1\] is not dtype"),
    "entry lacks a key": (file_bytes({"x": {"dtype": "F32", "shape": []}}), "tensor x: the header entry"),
    "entry has another key": (file_bytes({"x": entry() | {"y": 1}}), "tensor x: the header entry"),
    "dtype": (file_bytes({"x": entry("I64")}), "tensor x is 'I64'; supported: F32, F16, BF16"),
    "dtype is a list": (file_bytes({"x": entry(["F32"])}), r"tensor x is \['F32'\]; supported"),
    "shape is a number": (file_bytes({"x": entry(shape=4)}), "tensor x has the shape 4"),
    "negative size": (file_bytes({"x": entry(shape=[-2, -2])}), "tensor x has the shape"),
    "fraction": (file_bytes({"x": entry(shape=[2.0, 2])}), "tensor x has the shape"),
    "truth value": (file_bytes({"x": entry(shape=[True, 4])}), "tensor x has the shape"),
    "9 dimensions": (file_bytes({"x": entry(shape=[1] * 9)}), "tensor x has the shape"),
    "empty tensor": (file_bytes({"x": entry(shape=[0], offsets=[0, 0])}), "tensor x has the empty shape"),
    "three offsets": (file_bytes({"x": entry(offsets=[0, 8, 16])}), "tensor x has the data_offsets"),
    "negative offset": (file_bytes({"x": entry(offsets=[-16, 0])}), "tensor x has the data_offsets"),
    "backwards": (file_bytes({"x": entry(offsets=[16, 0])}), "needs 16 bytes, data_offsets give -16"),
    "too few bytes": (file_bytes({"x": entry(offsets=[0, 12])}), "needs 16 bytes, data_offsets give 12"),
    "product overflows": (file_bytes({"x": entry(shape=[2**62] * 8)}), "tensor x: F32 .* needs"),
    "past the end": (file_bytes({"x": entry(offsets=[4, 20])}), "tensor x needs .* cut off or damaged"),
    "overlap": (
        file_bytes({"x": entry(shape=[3], offsets=[0, 12]), "y": entry(shape=[2], offsets=[8, 16])}),
        "tensors x and y overlap",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    raw, message = REFUSED[case]
    with pytest.raises(CheckpointError, match=message) as error:
        opened(tmp_path, raw)
    assert str(tmp_path / "model.safetensors") in str(error.value)


def test_header_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.weights.safetensors._MAX_HEADER", 20)
    with pytest.raises(CheckpointError, match="the limit is 20"):
        opened(tmp_path, file_bytes({"x": entry()}))


def test_messages_are_one_short_printable_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path, file_bytes({"a\n\x1b[31m" + "b" * 10_000: entry("I64")}))
    message = str(error.value)
    assert message.isprintable()
    assert len(message) < len(str(tmp_path)) + 400
    assert message.endswith("is 'I64'; supported: F32, F16, BF16")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = file_bytes({"x": entry(offsets=[4, 20])}, bytes(20))
    assert opened(tmp_path, whole).read("x").data.shape == (2, 8)
    for size in range(len(whole)):
        with pytest.raises(CheckpointError):
            opened(tmp_path, whole[:size])
