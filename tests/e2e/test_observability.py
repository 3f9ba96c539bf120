"""What the documentation says of metrics is what a server exposes."""

from pathlib import Path
from typing import Any

import pytest
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
        if name.startswith(("vllm:", "legato:")) and not name.endswith("_created"):
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
