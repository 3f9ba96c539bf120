"""What a request may ask of the scheduling policy, over HTTP."""

import hashlib
from pathlib import Path

import pytest
from harness import Running, Script, assert_error, serving

from legato.core.config import EngineConfig, SchedulerConfig, ServeConfig, ServerConfig
from legato.core.errors import ConfigError
from legato.server.tenants import check_tenants
from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor


def executor() -> ScriptedExecutor:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script)


def post(server: Running, headers: dict[str, str] | None = None, **fields: object) -> int:
    response = server.http.post("/v1/completions", json={"prompt": "hi", **fields}, headers=headers)
    return response.status_code


def test_a_priority_is_refused_by_name_where_the_policy_has_none() -> None:
    with serving(executor()) as server:
        assert post(server, priority=0) == 200
        response = server.http.post("/v1/completions", json={"prompt": "hi", "priority": 1})
        assert "--policy priority" in assert_error(response, 400, param="priority")


def test_a_priority_is_taken() -> None:
    with serving(executor(), scheduler=SchedulerConfig(policy="priority")) as server:
        assert post(server, priority=-3) == 200
        for wrong in (1 << 40, "1", 1.5, True):
            response = server.http.post("/v1/completions", json={"prompt": "hi", "priority": wrong})
            assert_error(response, 400, param="priority")


def test_targets_are_refused_by_name_or_met_or_refused_with_a_time() -> None:
    with serving(executor()) as server:
        for field in ("ttft_target_ms", "e2e_target_ms"):
            response = server.http.post("/v1/completions", json={"prompt": "hi", field: 100})
            assert "--policy deadline" in assert_error(response, 400, param=field)
    with serving(executor(), scheduler=SchedulerConfig(policy="deadline")) as server:
        assert post(server, ttft_target_ms=5000, e2e_target_ms=30_000) == 200
        response = server.http.post("/v1/completions", json={"prompt": "hi", "ttft_target_ms": 0})
        assert_error(response, 400, param="ttft_target_ms")
        policy = server.engine.loop._scheduler._ledger.policy
        policy._step_s = 4.0  # type: ignore[attr-defined]
        response = server.http.post("/v1/completions", json={"prompt": "hi", "ttft_target_ms": 900})
        assert "missed by about 7." in assert_error(response, 429)
        assert response.headers["retry-after"] == "8", "rounded up"


def tenants(server: Running) -> set[str]:
    lanes = server.engine.loop._scheduler._ledger.policy._lanes  # type: ignore[attr-defined]
    return set(lanes.counters()) - {""}  # the warm-up is nobody's


def test_a_tenant_is_the_label_of_its_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b", "c")}
    keys.write_text(f"{digests['a']} team one requests_per_second=100\n{digests['b']} \n{digests['c']}  -\n")
    fair = SchedulerConfig(policy="fair")
    with serving(executor(), scheduler=fair, api_key_file=str(keys)) as server:
        for name in digests:
            assert post(server, {"x-api-key": name}) == 200
            assert post(server, {"x-api-key": name, "x-tenant-id": "someone else"}) == 200
        assert tenants(server) == {"team one", digests["b"][:12], digests["c"][:12]}


def test_a_tenant_is_what_the_header_says_where_that_is_asked_for() -> None:
    fair = SchedulerConfig(policy="fair")
    with serving(executor(), scheduler=fair, tenant_header="x-tenant-id", api_key=("k",)) as server:
        assert post(server, {"x-api-key": "k", "x-tenant-id": "one"}) == 200
        assert post(server, {"x-api-key": "k", "X-Tenant-Id": "two"}) == 200
        assert tenants(server) == {"one", "two"}
        for wrong in ("", "x" * 129):
            headers = {"x-api-key": "k", "x-tenant-id": wrong}
            response = server.http.post("/v1/completions", json={"prompt": "hi"}, headers=headers)
            assert_error(response, 400, code="invalid_header")


def test_a_tenant_header_needs_the_policy() -> None:
    server = ServerConfig(tenant_header="x-tenant-id")
    with pytest.raises(ConfigError, match="tenant_header needs policy fair"):
        check_tenants(ServeConfig(server=server))
    check_tenants(ServeConfig(server=server, engine=EngineConfig(scheduler=SchedulerConfig(policy="fair"))))
