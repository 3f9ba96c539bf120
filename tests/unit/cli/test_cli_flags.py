"""Flags come from the configuration; vLLM's spellings are understood; nothing is silently ignored (P5)."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from legato.cli import bench
from legato.cli.flags import _GRANTED, _VALUES, add_flags, normalize, read, whole
from legato.cli.main import main
from legato.core.config import EngineConfig, ServeConfig, build, flags
from legato.core.errors import ConfigError


def parse(*arguments: str) -> ServeConfig:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, ServeConfig)
    return read(ServeConfig, parser.parse_args(normalize(arguments)))


def test_no_flags_give_the_defaults() -> None:
    assert parse() == ServeConfig()


OTHER = {
    "executor": "reference", "generation_config": "vllm", "override_generation_config": "{}",
    "threads": 3, "seed": 9, "model": "some/model", "served_model_name": ("a", "b"),
    "format": "int8", "max_model_len": 2048, "tokenizer": "t", "chat_template": "c", "revision": "r", "cache_dir": "d",
    "block_size": 32, "kv_cache_dtype": "fp32", "kv_cache_memory": 1 << 20, "num_blocks": 7, "memory_utilization": 0.5,
    "prefault_kv": True, "policy": "static", "max_num_seqs": 8, "max_num_batched_tokens": 64,
    "long_prefill_token_threshold": 16, "max_num_queued_reqs": 5, "max_num_queued_tokens": 6, "max_step_ms": 7.5,
    "priority_ageing_s": 5.5, "tenant_weights": ("a=2", "b=1"), "tenant_header": "x-tenant-id",
    "static_padding": True, "host": "0.0.0.0", "port": 1,
    "drain_timeout": 1.5, "stall_timeout": 2.5, "max_body_bytes": 1000, "log_level": "error",
    "log_format": "json", "log_requests": True, "otlp_traces_endpoint": "http://here:4318",
    "pin_budget": 0.75, "tool_call_parser": "mistral", "reasoning_parser": "qwen3",
    "sse_keep_alive_interval": 5.5, "stream_interval": 4,
    "permissive_fields": True, "trust_request_chat_template": True, "api_key": ("a", "b"), "api_key_file": "keys",
    "enable_prefix_caching": False, "requests_per_second": 0.5, "tokens_per_minute": 7, "concurrent_requests": 8,
    "max_grammar_bytes": 9999, "max_grammar_depth": 9, "max_grammar_memory": 1 << 27,
    "grammar_timeout": 0.5, "grammar_cache_size": 3, "grammar_closing_tokens": 9,
    "max_grammar_items": 9,
    "on_engine_failure": "restart", "max_engine_restarts": 9, "record_traffic": "traffic.jsonl",
    "admin_port": 9, "admin_host": "0.0.0.0", "allowed_origins": ("https://a",), "allowed_methods": ("GET",),
    "allowed_headers": ("x",), "allow_credentials": True, "ssl_certfile": "c", "ssl_keyfile": "k", "ssl_ca_certs": "ca",
    "ssl_cert_reqs": 2, "root_path": "/r", "disable_uvicorn_access_log": True,
    "disable_access_log_for_endpoints": ("/x",),
    "kv_offloading_size": 2.5, "kv_offloading_dir": "kv",
}  # fmt: skip
NEEDED = {  # by flags that are refused without
    "admin_host": {"admin_port": 9}, "allow_credentials": {"allowed_origins": ("https://a",)},
    "ssl_keyfile": {"ssl_certfile": "c"}, "ssl_ca_certs": {"ssl_certfile": "c"},
    "ssl_cert_reqs": {"ssl_certfile": "c", "ssl_ca_certs": "ca"}, "kv_offloading_dir": {"kv_offloading_size": 1.5},
}  # fmt: skip


@pytest.mark.parametrize("name", [flag.name for flag in flags(ServeConfig)])
def test_every_flag_and_alias_sets_its_field(name: str) -> None:
    value = OTHER[name]
    needed = NEEDED.get(name, {})
    expected = build(ServeConfig, {name: value, **needed})
    if needed:
        with pytest.raises(ConfigError, match=f"{name} needs"):
            build(ServeConfig, {name: value})
    given_first = [f"--{flag.replace('_', '-')}={v[0] if isinstance(v, tuple) else v}" for flag, v in needed.items()]
    given_first = [flag.removesuffix("=True") for flag in given_first]
    assert expected != build(ServeConfig, needed)
    [spec] = [flag for flag in flags(ServeConfig) if flag.name == name]
    if spec.positional:
        assert parse(value) == expected
        return
    for spelling in (name, *spec.aliases):
        option = f"-{spelling}" if len(spelling) == 1 else f"--{spelling}"
        if value is False:
            option = option.replace("--", "--no-")
        given = () if isinstance(value, bool) else value if isinstance(value, tuple) else (str(value),)
        assert parse(*given_first, option.replace("_", "-"), *given) == expected
        assert parse(*given_first, option, *given) == expected


def test_throughput_is_measured_without_a_prefix_cache() -> None:
    parser = argparse.ArgumentParser()
    bench.add_to(parser.add_subparsers())

    def caching(*flags: str) -> bool:
        return read(EngineConfig, parser.parse_args(["bench", "throughput", *flags])).scheduler.enable_prefix_caching

    assert not caching()
    assert caching("--enable-prefix-caching")
    assert parse().engine.scheduler.enable_prefix_caching


def test_values_that_other_engines_use() -> None:
    assert parse("--dtype", "bfloat16") == build(ServeConfig, {"format": "bf16"})
    for name, dtype in {"fp8_e4m3": "fp8", "fp8_per_token_head": "fp8", "int8_per_token_head": "int8"}.items():
        assert parse("--kv-cache-dtype", name) == build(ServeConfig, {"kv_cache_dtype": dtype})
    assert parse("--max-model-len", "8k").engine.model.max_model_len == 8000
    assert (whole("2K"), whole("1.5m"), whole("7")) == (2048, 1_500_000, 7)
    assert parse("--model", "m") == parse("--model=m") == parse("m")
    assert parse("--served-model-name", "a", "--model", "m") == parse("m", "--served-model-name", "a")
    assert parse("--no-prefault-kv") == ServeConfig()
    assert parse("--allowed-origins", '["a", "b"]', "c").server.web.allowed_origins == ("a", "b", "c")
    assert parse("--api-key", "[1]", "[x").server.api_key == ("[1]", "[x")
    assert parse("--api-key", "a", "--api-key", "b", "--api-key=c").server.api_key == ("a", "b", "c")


@pytest.mark.parametrize("bad", ["1.5", "x", "", "k", "1kk"])
def test_whole_numbers_are_whole(bad: str) -> None:
    with pytest.raises(ValueError, match=r"could not convert|^1\.5$"):
        whole(bad)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 17), ("block_size", 0), ("memory_utilization", 0), ("memory_utilization", 1.5), ("port", 70000),
        ("max_num_seqs", 0), ("threads", 0), ("max_model_len", 0), ("drain_timeout", -1), ("seed", -1), ("format", "x"),
        ("ssl_cert_reqs", 3), ("root_path", "x"), ("admin_port", 70000), ("admin_port", 8000),
        ("max_num_queued_reqs", 0), ("max_num_queued_tokens", 0), ("memory_utilization", float("nan")), ("nonsense", 1),
    ],
)  # fmt: skip
def test_bad_settings_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        build(ServeConfig, {name: value})


def test_flags_of_vllm_that_ask_for_nothing_are_dropped() -> None:
    given = "serve m --tensor_parallel_size 1 -tp=1 --trust-remote-code --enforce-eager --port 1 -- --enable-lora"
    assert normalize(given.split()) == ["serve", "m", "--port", "1", "--", "--enable-lora"]


def test_p5_flags_without_effect_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    accepted = [*_GRANTED, *(f"{name} {'|'.join(values)}" for name, values in _VALUES.items())]
    assert [flag for flag in accepted if f"`{flag}`" not in page] == []


@pytest.mark.parametrize(
    "arguments",
    [
        "--enable-lora", "--tensor-parallel-size 2", "-tp=2", "--nonsense", "--block-size 17", "--port x",
        "--dtype float16", "--model", "--tensor-parallel-size", "--device --port 1", "--nonsense 5 m",
    ],
)  # fmt: skip
def test_p5_what_is_missing_ends_with_2_by_name(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused("serve", arguments, capsys)


def assert_refused(command: str, arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and the flag that the arguments begin with is named."""
    try:
        status: object = main([*command.split(), *arguments.split()])
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    name = arguments.split()[0].split("=")[0].lstrip("-")
    assert name.replace("-", "_") in capsys.readouterr().err.replace("-", "_")


SPECULATION = (
    "--speculative-config {}", "--speculative_config={}", "--speculative-model m", "--num-speculative-tokens 3",
    "--spec-method ngram", "--spec-model m", "--spec-tokens 3",
)  # fmt: skip
ADAPTERS = ("--enable-lora", "--enable_lora", "--lora-modules a=/etc", "--max-loras 1", "--max-lora-rank=8")
IMAGES = ("--limit-mm-per-prompt {}", "--allowed-local-media-path /", "--allowed-media-domains a")


@pytest.mark.parametrize("flag", [*SPECULATION, *ADAPTERS, *IMAGES])
@pytest.mark.parametrize("command", ["serve", "run -p x", "bench throughput", "build -o nowhere"])
def test_b03_c05_d17_d18_g05_g06_what_is_not_built_has_no_flag(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Speculation, adapters and images."""
    assert_refused(command, flag, capsys)


@pytest.mark.parametrize("flag", ["speculative_config", "enable_lora", "limit_mm_per_prompt"])
def test_b03_c05_d17_d18_g06_what_is_not_built_has_no_setting(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        build(EngineConfig, {"model": "m", flag: True})


@pytest.mark.parametrize(
    "arguments",
    [
        *("build --served-model-name a", "run --served-model-name a", "run --max-num-queued-tokens 9"),
        *("inspect --executor reference", "inspect --seed 1", "inspect --policy static", "inspect --static-padding"),
        *("inspect --max-num-queued-reqs 9", "inspect --no-enable-prefix-caching"),
    ],
)
def test_p5_commands_refuse_settings_that_they_have_no_use_for(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    assert arguments.split()[1] in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom legato.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'pydantic', 'starlette', 'jinja2', 'rich', 'tokenizers', 'huggingface_hub', 'asyncio'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "legato" in done.stdout


def test_offline_settings_are_the_same_flags() -> None:
    config = build(EngineConfig, {"model": "m", "gpu_memory_utilization": 0.5, "dtype": "float32"})
    assert (config.model.model, config.cache.memory_utilization, config.model.format) == ("m", 0.5, "fp32")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("-p x -o answers", "output: only"),
        ("-o answers", "output: only"),
        ("-f prompts -o nowhere/answers", "nowhere/answers: its folder"),
        ("-p x --system s", "system: "),
        ("-f prompts --system s", "system: "),
    ],
)
def test_p5_run_refuses_what_it_could_not_do_before_it_loads(
    arguments: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments.split()]) == 2
    assert why in capsys.readouterr().err
