"""A report as one HTML file that needs nothing else."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from legato.bench.figures import Figures, token_times
from legato.bench.load import Run
from legato.bench.plot import Line, cdf, chart
from legato.bench.policies import COLUMNS as POLICY_COLUMNS
from legato.bench.policies import MEMORY_COLUMNS, KvMemory, PolicyRun, memory_cells, policy_cells, why
from legato.bench.recorder import Trace
from legato.bench.report import LABELS, LATENCY_COLUMNS, latency_rows
from legato.bench.throughput import COLUMNS, Throughput, cells

__all__ = ["page", "policies_page", "serve_page", "throughput_page"]

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #0f172a; background: #f8fafc; margin: 0; }
main { max-width: 1200px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0 0 2px; } h2 { font-size: 18px; margin: 34px 0 10px; }
.sub { color: #475569; margin: 0 0 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; }
.tile { background: #fff; border: 1px solid #e2e8f0; border-radius: 8px; padding: 12px 14px; }
.tile b { display: block; font-size: 23px; font-variant-numeric: tabular-nums; } .tile span { color: #475569; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 16px; }
figure { margin: 0; background: #fff; border: 1px solid #e2e8f0; border-radius: 8px; padding: 12px 14px; }
figcaption { font-weight: 600; display: flex; justify-content: space-between; flex-wrap: wrap; gap: 4px 14px; }
.key { font-weight: 400; color: #475569; margin-right: 14px; white-space: nowrap; }
.key i { display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: middle; }
svg { width: 100%; display: block; } .grid { stroke: #e2e8f0; } svg text { fill: #475569; font-size: 12px; }
table { border-collapse: collapse; background: #fff; border: 1px solid #e2e8f0; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 14px; text-align: right; border-bottom: 1px solid #e2e8f0; }
th:first-child, td:first-child { text-align: left; } th { background: #f1f5f9; }
td.text { text-align: left; overflow-wrap: anywhere; }
.note { background: #fffbeb; border-left: 3px solid #d97706; padding: 8px 14px; margin: 8px 0; }
"""


def page(title: str, subtitle: str, body: Sequence[str], header: Mapping[str, Any]) -> str:
    """A whole document; `header` (see machine_info) becomes the table at its end."""
    machine = header["machine"]
    facts = {
        "CPU": f"{machine['cpu']}, {machine['threads']} physical cores usable, {machine['memory_gib']} GiB",
        "system": f"{machine['system']}, Python {header['python']}",
        "Legato": f"{header['legato']}, commit {header['commit'] or 'unknown'}",
        "date": header["date"],
        "command": " ".join(header["command"]),
        "seed": str(header["seed"]),
        "flags": ", ".join(f"{name} {value}" for name, value in header["flags"].items()),
    }
    rows = "".join(f'<tr><td>{name}</td><td class="text">{escape(text)}</td></tr>' for name, text in facts.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p>{"".join(body)}'
        f"<h2>Measured on and with</h2><table>{rows}</table></main></body></html>\n"
    )


def _tiles(values: Mapping[str, str]) -> str:
    inner = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(v)}</b></div>' for name, v in values.items()
    )
    return f'<div class="tiles">{inner}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _rate_line(name: str, events: Sequence[tuple[float, float]], end_s: float) -> Line:
    """(seconds, tokens) as tokens per second over about fifty equal spans, a quarter of a second at least."""
    width = max(0.25, end_s / 50)
    spans = [0.0] * (int(end_s / width) + 1)
    for at, tokens in events:
        spans[min(len(spans) - 1, max(0, int(at / width)))] += tokens
    return Line(name, [((i + 0.5) * width, tokens / width) for i, tokens in enumerate(spans[:-1] or spans)])


def serve_page(figures: Figures, run: Run, header: Mapping[str, Any], subtitle: str) -> str:
    """The report of a load test."""
    latency = {name: values for name, values in figures.latencies.items() if values}
    lags = sum(latency.get("send_lag", ())) > 0.01 * sum(latency.get("e2el", ()))
    ttft = ["ttft", *(["ttft_from_plan"] if lags else [])]
    e2el = ["e2el", *(["e2el_from_plan"] if lags else [])]

    def curves(title: str, *names: str) -> str:
        lines = [cdf(LABELS[n], latency[n]) for n in names if n in latency]
        return chart(title, "milliseconds", "% of values at most", lines, y_max=100)

    good = [record for record in run.records if not record.error]
    rate = _rate_line("output tokens", token_times(run, good), run.duration_s)
    charts = [
        curves("Time to first token", *ttft),
        curves("Time per output token, and gaps between chunks", "tpot", "itl"),
        curves("End-to-end latency", *e2el),
        chart("Output throughput", "seconds from the start", "tokens/s", [rate]),
        chart("Requests in flight", "seconds from the start", "requests", _in_flight(run)),
    ]
    body = [_tiles(_headline(figures))]
    body += [f'<p class="note">{escape(note)}</p>' for note in figures.notes]
    body += [f'<h2>Over the run</h2><div class="charts">{"".join(charts)}</div>', "<h2>Latency, ms</h2>"]
    body.append(_table(LATENCY_COLUMNS, latency_rows(figures)))
    if figures.failed:
        rows = [[kind, str(count)] for kind, count in sorted(figures.failed.items())]
        body.append("<h2>Failures</h2>" + _table(["kind", "requests"], rows))
    return page("Serving benchmark", subtitle, body, header)


def _headline(figures: Figures) -> dict[str, str]:
    seconds = figures.duration_s
    values = {
        "output tok/s": f"{figures.output_tokens / seconds:,.1f}",
        "total tok/s": f"{(figures.prompt_tokens + figures.output_tokens) / seconds:,.1f}",
        "requests/s": f"{figures.completed / seconds:,.2f}",
        "completed": f"{figures.completed}",
        "failed": f"{sum(figures.failed.values())}",
        "duration": f"{seconds:.1f} s",
        "client CPU time": f"{figures.client_cpu_s:.2f} s",
    }
    if figures.goodput_per_s is not None:
        values["goodput, requests/s"] = f"{figures.goodput_per_s:,.2f}"
    if figures.cache_hit_rate is not None:
        values["prefix cache hits"] = f"{figures.cache_hit_rate:.1%}"
    return values


def _in_flight(run: Run) -> list[Line]:
    """Requests at the server, and those that were due but had no place under the concurrency cap."""
    sent = [(r.sent_s, r.ended_s) for r in run.records]
    lines = [_count("at the server", sent, run)]
    waited = [(r.planned_s, r.sent_s) for r in run.records if r.sent_s - r.planned_s > 0.001]
    return [*lines, _count("waiting in the client", waited, run)] if waited else lines


def _count(name: str, spans: Sequence[tuple[float, float]], run: Run) -> Line:
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    points, level = [(0.0, 0.0)], 0
    for at, change in changes:
        level += change
        points.append((max(0.0, at - run.started_s), float(level)))
    return Line(name, points, steps=True)


def throughput_page(
    results: Sequence[Throughput], traces: Mapping[str, Trace], header: Mapping[str, Any], subtitle: str
) -> str:
    """The report of an offline run; traces: of the last round of each workload."""
    body = [_table(COLUMNS, [cells(result) for result in results])]
    for result in results:
        names = ("output tokens", "running", "ended")
        charts = _over_time([(names, traces[result.workload], result.seconds[-1])])
        body.append(f"<h2>{escape(result.workload)}, last round</h2>{charts}")
    return page("Offline throughput", subtitle, body, header)


def policies_page(
    runs: Sequence[PolicyRun],
    traces: Mapping[str, Trace],
    pool: str,
    memory: Sequence[KvMemory],
    header: Mapping[str, Any],
    subtitle: str,
) -> str:
    """The report of batching policies; traces: of the last round of each. pool: what `memory` is about."""
    body = [_table(POLICY_COLUMNS, [policy_cells(run, runs[0]) for run in runs])]
    body += [f'<p class="note">{escape(reason)}</p>' for reason in why(runs)]
    charts = _over_time([((run.policy,) * 3, traces[run.policy], run.seconds[-1]) for run in runs])
    body.append(f"<h2>Over the last round</h2>{charts}<h2>{escape(pool)}</h2>")
    body.append(_table(MEMORY_COLUMNS, [memory_cells(each) for each in memory]))
    return page("Continuous against static batching", subtitle, body, header)


def _over_time(runs: Sequence[tuple[Sequence[str], Trace, float]]) -> str:
    """Charts of one or several runs in this process, a line each: (its name in each of the charts), trace, seconds."""
    seconds = "seconds from the start"
    rates = [_rate_line(names[0], trace.tokens, end) for names, trace, end in runs]
    running = [Line(names[1], trace.running, steps=True) for names, trace, _ in runs]
    ended = [cdf(names[2], trace.ended) for names, trace, _ in runs]
    charts = [
        chart("Output throughput", seconds, "tokens/s", rates),
        chart("Batch occupancy", seconds, "sequences", running),
        chart("Requests ended", seconds, "% of requests", ended, y_max=100),
    ]
    return f'<div class="charts">{"".join(charts)}</div>'
