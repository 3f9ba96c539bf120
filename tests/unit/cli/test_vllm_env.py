"""vLLM's environment variables are honoured or named, never ignored in silence (P5)."""

import pytest

from legato.cli.vllm_env import with_environment
from legato.core.config import ServeConfig, ServerConfig


def test_the_api_key_closes_the_server() -> None:
    assert with_environment(ServeConfig(), {"VLLM_API_KEY": "k"}).server.api_key == ("k",)
    assert with_environment(ServeConfig(), {"VLLM_API_KEY": ""}) == ServeConfig()
    for server in (ServerConfig(api_key=("mine",)), ServerConfig(api_key_file="keys")):
        given = ServeConfig(server=server)
        assert with_environment(given, {"VLLM_API_KEY": "k"}) == given, "a flag wins, as there"


def test_all_others_are_named(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"VLLM_CPU_KVCACHE_SPACE": "40", "VLLM_NEW": "1", "PATH": "x", "VLLM_API_KEY": "k"}
    with_environment(ServeConfig(), environment)
    assert [record.getMessage() for record in caplog.records] == [
        "the environment variable VLLM_CPU_KVCACHE_SPACE has no effect here; use --kv-cache-memory",
        "the environment variable VLLM_NEW has no effect here",
    ]
