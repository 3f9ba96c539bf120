"""What documentation, dashboard and alert rules say of metrics is what a server exposes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.harness import serving
from support.byte_level import VOCAB
from support.scripted import ScriptedExecutor

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"model_name", "engine"}


@pytest.fixture(scope="module")
def families() -> dict[str, Any]:
    """All metrics of a server that has everything on, and has served a request; by name without suffix."""
    executor = ScriptedExecutor(vocab_size=VOCAB, memory={"kv": 1})
    with serving(executor, log_requests=True) as server:
        server.complete("a", max_tokens=2)
        server.engine.metrics.computed({"forward": 1.0})
        text = server.http.get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def doc_rows(families: dict[str, Any]) -> list[str]:
    """A row of the documentation for each metric that is not the client library's."""
    rows = []
    for name, family in families.items():
        if name.startswith(("vllm:", "legato:", "http_")) and not name.endswith("_created"):
            labels = {key for sample in family.samples for key in sample.labels} - {"le"}
            shown = ", ".join(f"`{label}`" for label in sorted(labels - COMMON if labels >= COMMON else labels))
            if not labels >= COMMON:
                shown = f"only {shown}" if labels else "none"
            total = "_total" if family.type == "counter" else ""
            rows.append(f"| `{name}{total}` | {family.type} | {shown} | {family.documentation} |")
    return rows


def test_the_documentation_lists_all_metrics(families: dict[str, Any]) -> None:
    """When this fails, put the rows that it prints into docs/observability.md."""
    text = (ROOT / "docs" / "observability.md").read_text()
    table = text.split("### All metrics")[1].split("\n###")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    expected = doc_rows(families)
    assert sorted(rows) == sorted(expected), "\n".join(["", *expected])


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
    return found


def charts() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((ROOT / "deploy/grafana/alerts.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


QUERIES = [target["expr"] for panel in charts() for target in panel["targets"]] + [rule["expr"] for rule in rules()]
_SERIES = re.compile(r"((?:vllm:|legato:|http_|process_|python_)[a-z0-9_:]+)(?:\{([^}]*)\})?")
_BY = re.compile(r"by \(([^)]*)\)")
TARGET = {"instance", "job"}  # labels that Prometheus adds


@pytest.mark.parametrize("query", QUERIES)
def test_queries_name_series_and_labels_that_exist(query: str, families: dict[str, Any]) -> None:
    labels: dict[str, set[str]] = {}
    for family in families.values():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    named = _SERIES.findall(query)
    assert named or query.startswith("up{"), query
    for series, selector in named:
        assert series in labels, f"no server exposes {series}"
        assert set(re.findall(r"(\w+)\s*=", selector)) <= labels[series] | TARGET
        for group in _BY.findall(query):
            assert {name.strip() for name in group.split(",")} <= labels[series] | TARGET
    promql_parser.parse(re.sub(r"\$__?\w+", "5m", query))


def test_every_panel_has_a_title_a_unit_and_a_place_of_its_own() -> None:
    places = set()
    for panel in charts():
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        places.add((place["x"], place["y"]))
        assert place["x"] + place["w"] <= 24
    assert len(places) == len(charts())
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_dashboard_is_as_its_tool_writes_it() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/dashboard.py"], capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "deploy/grafana/dashboard.json").read_text()


def test_the_dashboard_asks_for_variables_and_series_that_exist(families: dict[str, Any]) -> None:
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard())))
    assert used == set(variables)
    for each in variables.values():
        for series in _SERIES.findall(json.dumps(each.get("query", ""))):
            assert series[0] in {sample.name for family in families.values() for sample in family.samples}


def test_alerts_say_what_is_wrong_and_where() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"[1-9]\d*[smh]", rule.get("for", "1m"))
        functions = re.findall(r"\| *(\w+)", rule["annotations"]["summary"])
        assert set(functions) <= {"humanize", "humanize1024", "humanizeDuration", "humanizePercentage"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
