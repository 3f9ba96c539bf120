"""The GGUF reader against the gguf library's writer, and every refusal."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from legato.core.errors import CheckpointError
from legato.weights.gguf import GgufFile

QUANTIZED = {
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
    "Q4_0": gguf.GGMLQuantizationType.Q4_0,
    "Q4_1": gguf.GGMLQuantizationType.Q4_1,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, raw: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + raw


def info(name: str, dims: tuple[int, ...] = (2,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file_bytes(pairs: list[bytes], infos: list[bytes], data: bytes = b"", version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


def opened(tmp_path: Path, raw: bytes) -> GgufFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    return GgufFile(path)


def test_round_trip_of_all_value_types(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {}

    def add(method: Callable[[str, Any], None], key: str, value: Any) -> None:
        method(key, value)
        values[key] = value

    add(writer.add_uint8, "a.u8", 255)
    add(writer.add_int8, "a.i8", -128)
    add(writer.add_uint16, "a.u16", 65535)
    add(writer.add_int16, "a.i16", -32768)
    add(writer.add_uint32, "a.u32", 2**32 - 1)
    add(writer.add_int32, "a.i32", -(2**31))
    add(writer.add_uint64, "a.u64", 2**64 - 1)
    add(writer.add_int64, "a.i64", -(2**63))
    add(writer.add_float32, "a.f32", 0.5)
    add(writer.add_float64, "a.f64", 1e-300)
    add(writer.add_bool, "a.bool", True)
    add(writer.add_string, "a.text", "nœud 🎼")
    add(writer.add_array, "a.texts", ["", "ab", "Ġword"])
    add(writer.add_array, "a.ints", [1, -2, 3])
    add(writer.add_array, "a.floats", [0.25, -1.5])
    add(writer.add_array, "a.bools", [True, False])
    add(writer.add_array, "a.nested", [[1, 2], [3, 4]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = GgufFile(path).metadata
    assert metadata == values | {"general.architecture": "llama"}
    assert metadata["a.bool"] is True
    assert [type(x) for x in metadata["a.bools"]] == [bool, bool]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_round_trip_of_tensors(tmp_path: Path, version: int, alignment: int) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_tensor("f32", rng.standard_normal((3, 5)).astype(np.float32))
    writer.add_tensor("vector", rng.standard_normal(7).astype(np.float32))
    writer.add_tensor("cube", rng.standard_normal((2, 3, 5)).astype(np.float32))
    for name, kind in QUANTIZED.items():
        values = rng.standard_normal((6, 64)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    raw = bytearray(path.read_bytes())
    raw[4] = version
    path.write_bytes(raw)

    file = GgufFile(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert list(file.tensors()) == list(theirs)
    for name, mine in file.tensors().items():
        assert mine.shape == tuple(int(n) for n in reversed(theirs[name].shape))
        assert mine.dtype == theirs[name].tensor_type.name
        tensor = file.read(name)
        assert tensor.data.shape[0] == np.prod(mine.shape[:-1], dtype=int)
        assert not tensor.data.flags.writeable
        assert tensor.data.tobytes() == theirs[name].data.tobytes()


def test_arrays_outlive_close(tmp_path: Path) -> None:
    file = opened(tmp_path, file_bytes([], [info("x")], struct.pack("<2f", 1, 2)))
    data = file.read("x").data
    file.close()
    assert data.view(np.float32).tolist() == [[1, 2]]
    with pytest.raises(CheckpointError, match="after close"):
        file.read("x")


ONE = struct.pack("<2f", 1, 2)
HUGE = 2**63
REFUSED = {
    "empty": (b"", "the file is empty"),
    "other format": (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
    "version 1": (file_bytes([], [], version=1), "version 1 is not supported"),
    "big-endian": (file_bytes([], [], version=3 << 24), "big-endian"),
    "header cut": (b"GGUF\x03\0\0\0\1", "the tensor count runs past"),
    "tensor count": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "tensor count is 9223372036854775808"),
    "key count": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "the key count is"),
    "key length": (file_bytes([struct.pack("<Q", HUGE) + bytes(20)], []), "metadata key 0 runs past"),
    "key not UTF-8": (file_bytes([string(b"\xff") + struct.pack("<IB", 0, 1)], []), "metadata key 0 is not UTF-8"),
    "key twice": (file_bytes([pair("k", 0, b"\1")] * 2, []), "key k occurs twice"),
    "value type": (file_bytes([pair("k", 99, bytes(8))], []), "key k has the unknown type 99"),
    "value cut": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair("k", 10, b"\1\2\3"), "key k runs past"),
    "bool": (file_bytes([pair("k", 7, b"\2")], []), "key k holds a truth value"),
    "text not UTF-8": (file_bytes([pair("k", 8, string(b"\xc3("))], []), "key k is not UTF-8"),
    "array length": (file_bytes([pair("k", 9, struct.pack("<IQ", 0, HUGE))], []), "the length of key k is"),
    "array type": (file_bytes([pair("k", 9, struct.pack("<IQ", 77, 1) + bytes(8))], []), "unknown element type 77"),
    "array of texts": (
        file_bytes([pair("k", 9, struct.pack("<IQQ", 8, 2, 0) + struct.pack("<Q", 1 << 40))], []),
        r"key k\[1\] runs past",
    ),
    "array of bad text": (
        file_bytes([pair("k", 9, struct.pack("<IQ", 8, 2) + string("a") + string(b"\x80"))], []),
        r"key k\[1\] is not UTF-8",
    ),
    "nesting": (
        file_bytes([pair("k", 9, struct.pack("<IQ", 9, 1) * 5 + struct.pack("<IQ", 0, 0))], []),
        "nested more than 4 deep",
    ),
    "alignment 0": (file_bytes([pair("general.alignment", 4, bytes(4))], []), "general.alignment is 0"),
    "alignment 24": (file_bytes([pair("general.alignment", 4, b"\x18\0\0\0")], []), "general.alignment is 24"),
    "alignment text": (file_bytes([pair("general.alignment", 8, string("32"))], []), "general.alignment is '32'"),
    "tensor type": (file_bytes([], [info("x", (256,), 14)], bytes(210)), "tensor x is Q6_K; supported: F32, F16, BF16"),
    "tensor type unknown": (file_bytes([], [info("x", (2,), 4711)], ONE), "tensor x is of the unknown type 4711"),
    "no dimensions": (file_bytes([], [info("x", ())], ONE), "tensor x has 0 dimensions"),
    "5 dimensions": (file_bytes([], [info("x", (1,) * 5)], ONE), "tensor x has 5 dimensions"),
    "empty tensor": (file_bytes([], [info("x", (2, 0))], ONE), r"tensor x has the empty shape \(0, 2\)"),
    "part of a block": (file_bytes([], [info("x", (33,), 8)], bytes(99)), "rows of 33 values are not whole Q8_0"),
    "offset": (file_bytes([], [info("x", offset=4)], bytes(64)), "tensor x: offset 4 is not a multiple"),
    "past the end": (file_bytes([], [info("x", (3,))], ONE), "tensor x needs .* cut off or damaged"),
    "offset past the end": (file_bytes([], [info("x", offset=2**64 - 32)], ONE), "tensor x needs"),
    "product overflows": (file_bytes([], [info("x", (2**32, 2**32, 2**32))], ONE), "tensor x needs"),
    "tensor twice": (file_bytes([], [info("x"), info("x")], ONE), "tensor x occurs twice"),
    "overlap": (file_bytes([], [info("x", (16,)), info("y", offset=32)], bytes(64)), "tensors x and y overlap"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    raw, message = REFUSED[case]
    with pytest.raises(CheckpointError, match=message) as error:
        opened(tmp_path, raw)
    assert str(tmp_path / "model.gguf") in str(error.value)
    assert "\n" not in str(error.value)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    texts = pair("t", 9, struct.pack("<IQ", 8, 2) + string("ab") + string("c"))
    ints = pair("i", 9, struct.pack("<IQ", 5, 2) + bytes(8))
    whole = file_bytes([texts, ints, pair("s", 8, string("text"))], [info("x"), info("y", offset=32)], bytes(40))
    assert list(opened(tmp_path, whole).tensors()) == ["x", "y"]
    for size in range(len(whole)):
        with pytest.raises(CheckpointError):
            opened(tmp_path, whole[:size])


def test_array_elements_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.weights.gguf._MAX_ELEMENTS", 10)
    pairs = [pair(key, 9, struct.pack("<IQ", 0, 6) + bytes(6)) for key in "ab"]
    with pytest.raises(CheckpointError, match="the length of key b is 6; the limit is 4"):
        opened(tmp_path, file_bytes(pairs, []))


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a regular file"):
        GgufFile(tmp_path)
    with pytest.raises(CheckpointError, match="No such file"):
        GgufFile(tmp_path / "absent.gguf")
