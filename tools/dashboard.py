"""Write the Grafana dashboard: python tools/dashboard.py > deploy/grafana/dashboard.json

A table of panels; the rest of the JSON is the same for all of them.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ENGINE = '{model_name=~"$model", instance=~"$instance"}'
PROCESS = '{instance=~"$instance"}'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 7  # of a panel; Grafana's page is 24 wide


@dataclass(frozen=True)
class Panel:
    """targets: what is drawn, by its legend; `{{label}}` in a legend is the value of a label."""

    title: str
    unit: str
    targets: dict[str, str]
    about: str = ""
    stacked: bool = False


def quantiles(metric: str) -> dict[str, str]:
    rate = f"sum by (le) (rate({metric}_bucket{ENGINE}[$__rate_interval]))"
    return {f"p{q * 100:g}": f"histogram_quantile({q}, {rate})" for q in (0.5, 0.95, 0.99)}


def mean(metric: str) -> str:
    return f"{rate(metric + '_sum')} / {rate(metric + '_count')}"


def rate(metric: str, by: str = "") -> str:
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate({metric}{ENGINE}[$__rate_interval]))"


def total(metric: str, by: str = "", labels: str = ENGINE) -> str:
    group = f" by ({by})" if by else ""
    return f"sum{group} ({metric}{labels})"


ROWS: dict[str, list[Panel]] = {
    "What clients see": [
        Panel("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
        Panel("Inter-token latency", "s", quantiles("vllm:inter_token_latency_seconds")),
        Panel("Whole requests", "s", quantiles("vllm:e2e_request_latency_seconds")),
        Panel(
            "Throughput",
            "suffix:tok/s",
            {"generated": rate("vllm:generation_tokens_total"), "prompt": rate("vllm:prompt_tokens_total")},
        ),
        Panel(
            "HTTP answers",
            "reqps",
            {"{{status}} {{handler}}": rate("http_requests_total", "status, handler").replace(ENGINE, PROCESS)},
        ),
        Panel("Ended", "reqps", {"{{finished_reason}}": rate("vllm:request_success_total", "finished_reason")}),
        Panel("Refused", "reqps", {"{{reason}}": rate("vllm:admission_rejections_total", "reason")}),
    ],
    "Where the time goes": [
        Panel(
            "Phases of a request, p95",
            "s",
            {name: quantiles(f"vllm:request_{name}_time_seconds")["p95"] for name in ("queue", "prefill", "decode")},
            "Waiting for a place, computing the prompt, generating.",
        ),
        Panel("Turn of the engine loop", "s", quantiles("legato:step_duration_seconds")),
        Panel("Head of the queue has waited", "s", {"oldest": f"max(legato:oldest_wait_seconds{ENGINE})"}),
        Panel(
            "Engine thread",
            "percentunit",
            {"{{phase}}": rate("legato:loop_seconds_total", "phase")},
            "Adds up to 1 per engine. collect: the kernels compute; idle: nothing to do.",
            stacked=True,
        ),
        Panel("Executor", "percentunit", {"{{phase}}": rate("legato:executor_seconds_total", "phase")}, stacked=True),
        Panel("Steps", "ops", {"steps": rate("legato:steps_total")}),
        Panel(
            "Event loop comes late",
            "s",
            {name: expr.replace(ENGINE, PROCESS) for name, expr in quantiles("legato:event_loop_lag_seconds").items()},
            "Streams stall that long.",
        ),
    ],
    "Batch": [
        Panel(
            "Requests",
            "short",
            {"running": total("vllm:num_requests_running"), "waiting": total("vllm:num_requests_waiting")},
        ),
        Panel("Places", "short", {"{{state}}": total("legato:sequence_slots", "state")}, stacked=True),
        Panel(
            "A step holds",
            "short",
            {"sequences": mean("legato:step_sequences"), "tokens": mean("vllm:iteration_tokens_total")},
            "Means.",
        ),
    ],
    "KV cache": [
        Panel(
            "Use and waste",
            "percentunit",
            {
                "used": f"max(vllm:kv_cache_usage_perc{ENGINE})",
                "waste in used blocks": f"max(legato:kv_cache_waste_perc{ENGINE})",
            },
        ),
        Panel(
            "Prompt tokens found in the prefix cache",
            "percentunit",
            {"hits": f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}"},
        ),
        Panel(
            "Prompt tokens",
            "suffix:tok/s",
            {
                "computed": rate("vllm:prompt_tokens_by_source_total").replace("{", '{source="local_compute", ', 1),
                "cached: {{source}}": rate("vllm:prompt_tokens_cached_by_source_total", "source"),
            },
            stacked=True,
        ),
        Panel("Preemptions", "ops", {"preemptions": rate("vllm:num_preemptions_total")}),
        Panel("Blocks", "short", {"{{state}}": total("legato:kv_blocks", "state")}, stacked=True),
    ],
    "Process": [
        Panel(
            "Memory",
            "bytes",
            {
                "{{kind}}": total("legato:process_memory_bytes", "kind", PROCESS),
                "available": total("legato:memory_available_bytes", "", PROCESS),
            },
            "file: the mapped model; anonymous: what grows; peak: the most there ever was.",
        ),
        Panel(
            "Memory as planned",
            "bytes",
            {"{{pool}}": total("legato:memory_planned_bytes", "pool", PROCESS)},
            stacked=True,
        ),
        Panel(
            "CPU",
            "suffix:cores",
            {"cores": f"sum (rate(process_cpu_seconds_total{PROCESS}[$__rate_interval]))"},
        ),
        Panel("Open files", "short", {"files": total("process_open_fds", "", PROCESS)}),
    ],
}


def panels() -> Iterator[dict[str, Any]]:
    """Rows and the panels in them, each with its place on the page."""
    number, top = 0, 0
    for title, row in ROWS.items():
        number += 1
        place = {"h": 1, "w": 24, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(row):
            number += 1
            across, down = index % (24 // WIDTH), index // (24 // WIDTH)
            yield drawn(panel, number, {"h": HEIGHT, "w": WIDTH, "x": across * WIDTH, "y": top + down * HEIGHT})
        top += -(-len(row) // (24 // WIDTH)) * HEIGHT


def drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 20, "stacking": {"mode": "normal"}} if panel.stacked else {"fillOpacity": 0}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(panel.targets.items())
        ],
    }


def variable(name: str, label: str, metric: str, of: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({metric}, {of})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": "legato",
        "title": "Legato",
        "tags": ["legato", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                variable("model", "Model", "vllm:num_requests_running", "model_name"),
                variable("instance", "Instance", "legato:memory_available_bytes", "instance"),
            ]
        },
        "annotations": {"list": []},
        "panels": list(panels()),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
