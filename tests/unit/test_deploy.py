"""The files in deploy/ agree with the server and with good practice."""

import argparse
import configparser
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from legato.cli.flags import add_flags, normalize, read
from legato.core.config import ServeConfig
from legato.server.keys import OPEN_PATHS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def parse(arguments: list[str]) -> ServeConfig:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    add_flags(parser, ServeConfig)
    return read(ServeConfig, parser.parse_args(normalize(arguments)))


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: name and the rest, continued lines joined, comments left out."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines()) if name]


def test_the_image_is_slim_pinned_and_in_stages(instructions: list[tuple[str, str]]) -> None:
    bases = [rest.split()[0] for name, rest in instructions if name == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+", base) for base in bases)
    last = max(i for i, (name, _) in enumerate(instructions) if name == "FROM")
    assert not any("apt-get" in rest for _, rest in instructions[last:]), "no compiler in the image"


def test_the_image_is_not_root(instructions: list[tuple[str, str]]) -> None:
    users = [rest for name, rest in instructions if name == "USER"]
    assert users
    assert re.fullmatch(r"[1-9]\d*", users[-1]), "a number, so that runAsNonRoot can check it"


def test_instructions_keep_to_the_rules(instructions: list[tuple[str, str]]) -> None:
    known = {
        *("FROM", "RUN", "WORKDIR", "COPY", "ENV", "VOLUME", "USER", "EXPOSE"),
        *("HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"),
    }
    assert {name for name, _ in instructions} <= known, "ADD in particular is not used"
    for name, rest in instructions:
        if name in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest), "without a shell, so that signals arrive"
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
        for command in ("pip install", "pip wheel"):
            assert command not in rest or f"{command} --no-cache-dir" in rest
        if name == "WORKDIR":
            assert rest.startswith("/")


def test_what_is_copied_exists_and_is_not_ignored(instructions: list[tuple[str, str]]) -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    sources = [source for name, rest in instructions if name == "COPY" for source in rest.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source


def test_the_image_starts_and_is_probed(instructions: list[tuple[str, str]]) -> None:
    of = dict(instructions)
    entry, command = json.loads(of["ENTRYPOINT"]), json.loads(of["CMD"])
    assert entry == ["legato", "serve"]
    config = parse(command).server
    assert of["EXPOSE"] == str(config.port)
    probe = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", of["HEALTHCHECK"])
    assert probe is not None
    assert (int(probe[1]), probe[2]) == (config.port, "/health")
    assert of["VOLUME"] in of["ENV"]


def test_commands_of_the_page_have_flags_that_exist() -> None:
    [run] = re.findall(r"^docker run .* legato:\S+ (.*)$", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    config = parse(run.split())
    assert (config.server.host, config.engine.model.model) == ("0.0.0.0", "Qwen/Qwen3-0.6B")


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((DEPLOY / "legato.service").read_text())
    return parser


def test_the_unit_starts_what_there_is_and_lets_it_drain() -> None:
    service = unit()["Service"]
    program, command, *arguments = service["ExecStart"].split()
    assert (program, command) == ("/opt/legato/bin/legato", "serve")
    config = parse(arguments).server
    assert float(service["TimeoutStopSec"]) > config.drain_timeout + 5
    assert config.api_key_file == "%d/keys"
    assert service["LoadCredential"].startswith("keys:")
    assert config.host == "127.0.0.1"
    assert service["Restart"] == "on-failure", "the process ends with 1 when its engine fails"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DynamicUser", "yes"), ("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"), ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"), ("PrivateDevices", "yes"), ("CapabilityBoundingSet", ""),
        ("SystemCallFilter", "@system-service"), ("RestrictNamespaces", "yes"), ("UMask", "0077"),
    ],
)  # fmt: skip
def test_the_unit_is_hardened(name: str, value: str) -> None:
    assert unit()["Service"][name] == value


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "legato.yaml").read_text()))
    assert all({"apiVersion", "kind", "metadata", "spec"} <= set(each) for each in documents)
    return {each["kind"]: each for each in documents}


def test_the_manifest_agrees_with_the_server(objects: dict[str, Any]) -> None:
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    config = parse(container["args"]).server
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.port, "admin": config.admin_port}
    assert config.host == config.admin_host == "0.0.0.0"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert get["path"] == ("/health" if probe == "livenessProbe" else "/ready")
        assert get["path"] in OPEN_PATHS
        assert get["port"] in ports
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > config.drain_timeout + pause + 5
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == "http"
    annotations = objects["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(config.admin_port)
    assert str(config.api_key_file).startswith("/etc/legato/")


def test_the_manifest_is_complete(objects: dict[str, Any]) -> None:
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget", "Deployment"):
        selector = objects[kind]["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert (
        volumes["cache"]["persistentVolumeClaim"]["claimName"] == objects["PersistentVolumeClaim"]["metadata"]["name"]
    )
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert re.fullmatch(r"[\w./-]+:\d[\w.]*", container["image"]), "a version, not latest"


def test_the_pod_has_no_rights_that_it_does_not_need(objects: dict[str, Any]) -> None:
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    user = re.search(r"^USER (\d+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(user[1])
    assert pod["automountServiceAccountToken"] is False
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
