"""G04: pickled weights are refused with a hint, and what is in them does not run."""

import pickle
from pathlib import Path

import pytest

from legato.core.errors import CheckpointError
from legato.weights.open import open_checkpoint
from support.tiny_folders import tiny_folder


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> object:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin", "model.pt", "weights.ckpt"])
def test_g04_a_pickle_is_refused_and_does_not_run(tmp_path: Path, name: str) -> None:
    sprung = tmp_path / "sprung"
    folder = tiny_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Trap(sprung)))
    for model in (folder, folder / name):
        with pytest.raises(CheckpointError, match=r"pickled weights can run code .* convert them to safetensors"):
            open_checkpoint(str(model), revision=None, cache_dir=tmp_path / "cache")
    assert not sprung.exists()
    pickle.loads((folder / name).read_bytes())  # noqa: S301
    assert sprung.exists(), "the trap works"


def test_g04_a_pickle_beside_safetensors_is_left_alone(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    folder = tiny_folder(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(sprung)))
    with open_checkpoint(str(folder), revision=None, cache_dir=tmp_path / "cache") as checkpoint:
        assert checkpoint.source.tensors()
    assert not sprung.exists()
