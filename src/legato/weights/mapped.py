"""A file of tensors mapped read-only into memory."""

import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from legato.core.errors import CheckpointError
from legato.weights.messages import refuse

__all__ = ["MappedFile", "refuse_overlap"]


class MappedFile:
    """Maps the whole file at its size of now. Nothing here may shrink the file: replace it by rename only.

    Arrays from `rows` keep the mapping alive, so closing does not pull memory from under a reader.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for a writer
                raise CheckpointError(f"{path}: not a regular file")
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise CheckpointError(f"{path}: the file is empty")
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error

    @property
    def data(self) -> mmap.mmap:
        if self._map is None:
            raise CheckpointError(f"{self.path}: read after close")
        return self._map

    def rows(self, offset: int, rows: int, row_bytes: int) -> npt.NDArray[np.uint8]:
        """A read-only view, uint8 of shape (rows, row_bytes). The caller has checked the range."""
        flat = np.frombuffer(self.data, np.uint8, rows * row_bytes, offset)
        return flat.reshape(rows, row_bytes)

    def close(self) -> None:
        self._map = None


def refuse_overlap(file: Path, spans: Iterable[tuple[int, int, str]]) -> None:
    """CheckpointError where two tensors of a file share bytes. spans: begin, end, name of each."""
    last, previous = 0, ""
    for begin, end, name in sorted(spans):
        if begin < last:
            refuse(file, f"tensors {previous} and {name} overlap")
        last, previous = end, name
