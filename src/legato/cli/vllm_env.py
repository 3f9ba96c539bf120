"""vLLM's environment variables: the API key counts, and the others are named, since they would be without effect."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from legato.core.config import ServeConfig

__all__ = ["with_environment"]

log = logging.getLogger(__name__)

# What does here what a variable does there.
_INSTEAD = {
    "VLLM_CPU_KVCACHE_SPACE": "--kv-cache-memory",
    "VLLM_CPU_OMP_THREADS_BIND": "--threads and the process's CPU affinity",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "--threads",
    "VLLM_LOGGING_LEVEL": "--log-level",
    "VLLM_CACHE_ROOT": "--cache-dir",
}


def with_environment(config: ServeConfig, environment: Mapping[str, str]) -> ServeConfig:
    """`config` with the key of VLLM_API_KEY where no flag names keys; a manifest that sets it means a closed server."""
    for name in sorted(environment):
        if name.startswith("VLLM_") and name != "VLLM_API_KEY":
            instead = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
            log.warning("the environment variable %s has no effect here%s", name, instead)
    key = environment.get("VLLM_API_KEY", "")
    server = config.server
    if not key or server.api_key or server.api_key_file:
        return config
    return replace(config, server=replace(server, api_key=(key,)))
