"""docs/migrate-from-vllm.md says what each flag of vLLM does here, and it does that."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from legato.cli.flags import _GRANTED, _MISSING, _VALUES, add_flags, normalize, read
from legato.cli.main import main
from legato.core.config import ServeConfig

PAGE = (Path(__file__).parents[3] / "docs" / "migrate-from-vllm.md").read_text()
ROWS = re.findall(r"^\| `(-.+?)` \| (works|no effect|refused) \|", PAGE, re.MULTILINE)

# The flags of `vllm serve` 0.32 that operators use, as its documentation lists them.
USED = """
config host port uds api-key served-model-name ssl-keyfile ssl-certfile ssl-ca-certs enable-ssl-refresh allowed-origins
allowed-methods allowed-headers allow-credentials root-path middleware api-server-count headless grpc shutdown-timeout
enable-request-id-headers disable-uvicorn-access-log disable-access-log-for-endpoints enable-log-requests max-log-len
enable-log-outputs sse-keep-alive-interval enable-force-include-usage enable-prompt-tokens-details
enable-per-request-metrics enable-server-load-tracking fingerprint-mode chat-template chat-template-content-format
default-chat-template-kwargs enable-auto-tool-choice tool-call-parser tool-parser-plugin
tool-strict-level reasoning-parser reasoning-parser-plugin dtype max-model-len quantization load-format tokenizer
tokenizer-mode trust-remote-code revision hf-token hf-overrides generation-config override-generation-config seed
max-logprobs logprobs-mode enforce-eager optimization-level performance-mode compilation-config
cudagraph-capture-sizes attention-backend enable-sleep-mode model-impl max-num-seqs max-num-batched-tokens
max-num-scheduled-tokens max-num-active-seqs max-num-queued-reqs max-num-queued-tokens enable-chunked-prefill
long-prefill-token-threshold scheduling-policy scheduler-cls scheduler-reserve-full-isl watermark
prefill-schedule-interval async-scheduling stream-interval block-size gpu-memory-utilization kv-cache-memory-bytes
kv-cache-dtype enable-prefix-caching prefix-caching-hash-algo prefix-cache-retention-interval num-gpu-blocks-override
cpu-offload-gb kv-transfer-config kv-events-config ec-transfer-config tensor-parallel-size pipeline-parallel-size
data-parallel-size prefill-context-parallel-size decode-context-parallel-size data-parallel-rank data-parallel-backend
enable-expert-parallel all2all-backend enable-eplb enable-elastic-ep enable-dbo distributed-executor-backend nnodes
node-rank enable-fault-tolerance speculative-config spec-method enable-lora lora-modules max-loras max-lora-rank
max-cpu-loras lora-dtype limit-mm-per-prompt mm-processor-kwargs mm-processor-cache-gb language-model-only
allowed-local-media-path allowed-media-domains structured-outputs-config otlp-traces-endpoint collect-detailed-traces
disable-log-stats custom-histogram-buckets kv-cache-metrics enable-mfu-metrics show-hidden-metrics-for-version
profiler-config weight-transfer-config
grpc-port device-memory-utilization offload-backend offload-group-size offload-prefetch-step prefix-match-unit
eplb-config elastic-ep-max-dp-size dbo-decode-token-threshold dbo-prefill-token-threshold master-addr master-port
spec-model spec-tokens mm-encoder-tp-mode kv-cache-metrics-sample cudagraph-metrics per-request-spec-decode-metrics
"""


def parse(arguments: list[str]) -> ServeConfig:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    add_flags(parser, ServeConfig)
    return read(ServeConfig, parser.parse_args(normalize(arguments)))


def test_every_flag_has_a_row() -> None:
    named = {word.removeprefix("--") for arguments, _ in ROWS for word in arguments.split()}
    assert [flag for flag in USED.split() if flag not in named] == []


@pytest.mark.parametrize(("arguments", "verdict"), ROWS, ids=[row[0] for row in ROWS])
def test_a_flag_does_what_its_row_says(arguments: str, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments.split()
    if verdict == "works":
        parse(words)
        assert not {words[0]} & ({*_GRANTED, *_VALUES})
    elif verdict == "no effect":
        assert normalize(words) == []
    else:
        try:
            status: object = main(["serve", *words])
        except SystemExit as exit:
            status = exit.code
        assert status == 2
        name = words[0].lstrip("-").replace("-", "_")
        assert name in capsys.readouterr().err.replace("-", "_")


def test_no_flag_is_in_two_classes() -> None:
    assert not _MISSING & _GRANTED
    assert not (_MISSING | _GRANTED) & set(_VALUES)


def test_the_usual_command_line_works() -> None:
    [command] = re.findall(r"^legato serve (.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)
    config = parse(shlex.split(command.replace("\\\n", "")))
    assert config.engine.model.model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert config.engine.model.max_model_len == 4096
    assert (config.engine.scheduler.max_num_seqs, config.engine.scheduler.max_num_batched_tokens) == (256, 2048)
    assert config.engine.cache.memory_utilization == 0.9
    explained = re.findall(r"^\| `(--.+?)` \| ", PAGE.partition("## What is different")[0], re.MULTILINE)
    assert [word for word in command.split() if word.startswith("--")] == [row.split()[0] for row in explained]
