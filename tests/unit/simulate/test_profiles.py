"""Models and machines as data."""

import json

import pytest

from legato.core.errors import CheckpointError, ConfigError
from legato.models import find
from legato.simulate.hardware import BUILT_IN, find_hardware
from legato.simulate.model_profile import profile, read_profile
from support.golden import FOLDER


def test_sizes_of_known_models():
    """Parameters as their makers state them, and KV bytes per token as everybody computes them."""
    big, small, tiny = map(read_profile, ("llama-3.1-70b", "llama-3.1-8b", "smollm2-135m"))
    assert [round(model.total / 1e6) for model in (big, small, tiny)] == [70_552, 8_030, 134]
    kv = [2 * sum(kind.layers * kind.values for kind in model.attention) for model in (big, small, tiny)]
    assert kv == [320 << 10, 128 << 10, 23_040]
    assert tiny.tables == 0
    assert big.tables == big.head


@pytest.mark.parametrize("path", sorted((FOLDER / "shapes").glob("*.json")), ids=lambda path: path.stem)
def test_any_family_has_a_profile_or_is_refused(path):
    """Parameters are those of the checkpoint's matrices."""
    shape = json.loads(path.read_text())
    arch = find(shape["config"], path.name, declared=True)
    if path.stem in ("BertModel", "Mamba2ForCausalLM", "Gemma3nForCausalLM"):
        with pytest.raises(CheckpointError, match="cannot be simulated"):
            profile("x", arch)
        return
    found = profile("x", arch)
    assert sum(kind.layers for kind in found.attention) == found.layers
    assert min(found.params, found.head, *(kind.flops for kind in found.attention)) > 0


def test_a_model_is_a_name_a_file_or_a_folder(tmp_path):
    config = (BUILT_IN.parent / "configs" / "smollm2-135m.json").read_text()
    (tmp_path / "config.json").write_text(config)
    assert read_profile(str(tmp_path)).total == read_profile("smollm2-135m").total
    assert read_profile(str(tmp_path / "config.json")).name == tmp_path.name
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read_profile(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"no such file, and not one of llama-3\.1-70b"):
        read_profile("llama-9")


@pytest.mark.parametrize("name", ["h100x8", "h200x8", "a100x8", "cpu2"])
def test_built_in_machines_can_be_read(name):
    machine, defaults = find_hardware(name)
    assert machine.name == name
    assert all(isinstance(value, int) for value in defaults.values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step_s =", "stp_s =", "mine.stp_s: not a key"),
        ("bandwidth = 1e9", "", "mine.bandwidth: missing"),
        ("matmul = 0.5", "matmul = 0", "mine.matmul: 0 is not possible"),
        ("weights = 0.5", "weights = 0.5\noverlap = 1.5", "mine.overlap: 1.5 is not possible"),
        ("{ bf16 = 1e9 }", "{ bf16 = -1.0 }", "mine.flops: "),
        ("link = 1e9", "link = 0", "mine.link: needed for 2 devices"),
        ("devices = 2", "devices = 2.5", r"mine.devices: 2\.5 is not possible"),
        ("max_num_seqs = 4", "max_num_seqs = '4'", "mine.defaults: not a table"),
        ("[mine]", "[mine", "line 1"),
        ("[mine]", "[yours]", "'mine' is not one of yours in machines.toml"),
    ],
)
def test_a_wrong_machine_is_refused_by_key(tmp_path, old, new, message):
    text = """[mine]
devices = 2
memory = 1000
flops = { bf16 = 1e9 }
bandwidth = 1e9
link = 1e9
matmul = 0.5
prefill = 0.5
weights = 0.5
cache = 0.5
vector = 1e9
step_s = 0
sequence_s = 0
price = 1
defaults = { max_num_seqs = 4 }
"""
    path = tmp_path / "machines.toml"
    path.write_text(text)
    assert find_hardware("mine", path)[1] == {"max_num_seqs": 4}
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        find_hardware("mine", path)
