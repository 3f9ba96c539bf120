"""Checkpoint rows to float32, against the gguf package."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize

from legato.quant.dequantize import dequantize
from legato.quant.formats import format_for_source

BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "F16": 64, "BF16": 64, "F32": 128}  # of 32 values


@pytest.mark.filterwarnings("ignore:invalid value")  # some scales are infinite
@pytest.mark.parametrize("dtype", BYTES)
def test_any_bytes_give_the_same_floats(dtype: str) -> None:
    rows = np.random.RandomState(1).randint(0, 256, (50, 3 * BYTES[dtype])).astype(np.uint8)
    expected = gguf_dequantize(rows, GGMLQuantizationType[dtype]) if dtype != "F32" else rows.view(np.float32)
    ours = dequantize(dtype, rows)
    assert ours.dtype == np.float32
    assert ours.shape == (50, 96)
    np.testing.assert_array_equal(ours, expected)


def test_rows_need_not_be_contiguous() -> None:
    rows = np.random.RandomState(2).randint(0, 256, (8, 40)).astype(np.uint8)
    np.testing.assert_array_equal(dequantize("Q4_1", rows[::2, :20]), dequantize("Q4_1", rows[::2, :20].copy()))


@pytest.mark.parametrize("dtype", BYTES)
def test_every_readable_dtype_has_a_format(dtype: str) -> None:
    assert format_for_source(dtype)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(KeyError):
        dequantize("Q5_K", np.zeros((1, 34), np.uint8))
