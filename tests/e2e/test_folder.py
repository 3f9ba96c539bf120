"""A Hugging Face folder, from files to text, on both executors."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from legato import LLM, SamplingParams
from legato.core.errors import CheckpointError, ConfigError
from legato.weights.cache_dir import list_cache, prune
from support.tiny_folders import tiny_folder

PROMPTS = ["hello", "a longer prompt, with more to look back at", "x"]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "tiny-llama")


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {"cache_dir": str(folder.parent / "cache"), "num_blocks": 64, "max_num_seqs": 4, **more}


def test_native_and_reference_give_the_same_text(folder: Path) -> None:
    texts = []
    for executor in ("native", "reference"):
        with LLM(str(folder), executor=executor, **settings(folder)) as llm:
            assert llm.model_name == "tiny-llama"
            texts.append([result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)])
            texts.append([llm.chat([{"role": "user", "content": "hi"}], GREEDY)[0].outputs[0].token_ids])
    assert texts[:2] == texts[2:]


def test_allowed_and_biased_tokens_on_both_executors(folder: Path) -> None:
    params = SamplingParams(
        max_tokens=12, seed=3, ignore_eos=True, logit_bias={9: -100, 12: 1.5}, allowed_token_ids=(7, 9, 12, 200)
    )
    answers = []
    for executor in ("native", "reference"):
        with LLM(str(folder), executor=executor, **settings(folder)) as llm:
            answers.append([result.outputs[0].token_ids for result in llm.generate(PROMPTS, params)])
    assert answers[0] == answers[1]
    assert {token for answer in answers[0] for token in answer} == {7, 12, 200}


def test_the_models_own_sampling_defaults_apply_where_nothing_is_said(folder: Path) -> None:
    with LLM(str(folder), seed=5, **settings(folder)) as llm:
        defaults = llm.get_default_sampling_params()
        assert (defaults.temperature, defaults.top_k, defaults.max_tokens) == (0.5, 7, None)
        first, again = (llm.generate("x", SamplingParams(max_tokens=9))[0] for _ in range(2))
        assert first.seed == again.seed == 5
        assert first.outputs == again.outputs


def test_other_tokenizer_template_and_length(folder: Path) -> None:
    template = folder.parent / "shout.jinja"
    template.write_text("{{ messages[0]['content'] | upper }}")
    with LLM(str(folder), chat_template=str(template), max_model_len=64, **settings(folder)) as llm:
        assert llm.info.max_position == 64
        talk = llm.chat([{"role": "user", "content": "hi"}], GREEDY)[0]
        assert talk.prompt_token_ids == llm.encode("HI")


def test_prune_leaves_the_engine_file_of_a_running_model(folder: Path) -> None:
    cache = folder.parent / "cache"
    with LLM(str(folder), **settings(folder)) as llm:
        assert prune(cache, all=True) == []
        [engine] = list_cache(cache)
        assert llm.info.details["engine_file"] == str(engine.path)
        assert time.time() - engine.last_used < 60
    assert prune(cache, all=True) == [engine]


def test_a_start_from_the_cache_loads_no_compiler(folder: Path) -> None:
    start = f"import sys; from legato import LLM; LLM({str(folder)!r}, **{settings(folder)!r}).close(); "
    report = "print(*sorted({'legato.build.compile', 'legato.build.lower', 'legato.models.llama'} & set(sys.modules)))"
    first, second = (
        subprocess.run((sys.executable, "-c", start + report), capture_output=True, text=True, timeout=60, check=True)
        for _ in range(2)
    )
    assert first.stdout == "legato.build.compile legato.build.lower legato.models.llama\n"
    assert second.stdout == "\n"


def test_what_cannot_be_loaded_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_len 1000"):
        LLM(str(folder), max_model_len=1000, **settings(folder))
    with pytest.raises(ConfigError, match="nonsense"):
        LLM(str(folder), nonsense=1)
    no_use = {"kv_cache_dtype": "bf16", "threads": 1, "kv_cache_memory": 1 << 20, "memory_utilization": 0.5}
    for name, value in {**no_use, "prefault_kv": True}.items():
        with pytest.raises(ConfigError, match=name):
            LLM(str(folder), executor="reference", **{name: value}, **settings(folder))
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        LLM(str(folder), **settings(folder))


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_evicted_blocks_come_back_after_a_restart(folder: Path, executor: str) -> None:
    """The flags as an operator gives them; the file lies in the cache folder, and is held while it is used."""
    more = {"num_blocks": 6, "kv_offloading_size": 0.01, "executor": executor}
    prompts = [[(p * 7 + i) % 200 + 3 for p in range(60)] for i in range(4)]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    found = []
    for _ in range(2):
        with LLM(str(folder), **settings(folder, **more)) as llm:
            results = [llm.generate({"prompt_token_ids": prompt}, params)[0] for prompt in prompts]
            cache = folder.parent / "cache"
            assert [entry.kind for entry in list_cache(cache)] == ["engines", "kv"]
            assert [entry.kind for entry in prune(cache, all=True, dry_run=True)] == []
        found.append([(result.outputs[0].token_ids, result.num_cached_tokens) for result in results])
    assert [tokens for tokens, _ in found[0]] == [tokens for tokens, _ in found[1]]
    assert [cached for _, cached in found[0]] == [0] * 4
    assert [cached for _, cached in found[1]] == [48, 48, 0, 0], "the beginnings of the last two were never evicted"
