"""Line charts as inline SVG: no script, no font and no style sheet from elsewhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "cdf", "chart"]

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 16, 46  # margins
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#475569")
MAX_POINTS = 600  # per line: more than there are pixels


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points of ascending x. `steps`: it holds each y until the next x."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


def cdf(name: str, values: Sequence[float]) -> Line:
    """Share of the values (percent) that are at most x."""
    ordered = sorted(values)
    count = len(ordered)
    points = [(value, 100 * (i + 1) / count) for i, value in enumerate(ordered)]
    return Line(name, [(ordered[0], 0.0), *points], steps=True)


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Line], *, y_max: float | None = None) -> str:
    """An SVG element. Both axes start at 0. A chart without points says so."""
    shown = [line for line in lines if line.points]
    x_end = max((line.points[-1][0] for line in shown), default=0.0) or 1.0
    y_end = y_max or max((y for line in shown for _, y in line.points), default=0.0) * 1.05 or 1.0
    x_scale, y_scale = (WIDTH - LEFT - RIGHT) / x_end, (HEIGHT - TOP - BOTTOM) / y_end

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x * x_scale, HEIGHT - BOTTOM - y * y_scale

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for x in _ticks(x_end):
        at = place(x, 0)[0]
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for y in _ticks(y_end):
        at = place(0, y)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    middle = (HEIGHT - BOTTOM + TOP) / 2
    parts.append(
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
        f'<text class="axis" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    for line, colour in zip(shown, COLOURS, strict=False):
        drawn = [place(x, y) for x, y in _thin(line.points)]
        parts.append(f'<path d="{_path(drawn, line.steps)}" fill="none" stroke="{colour}" stroke-width="2"/>')
    if not shown:
        parts.append(f'<text class="axis" x="{WIDTH / 2}" y="{middle}" text-anchor="middle">no data</text>')
    parts.append("</svg>")
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(line.name)}</span>'
        for line, colour in zip(shown, COLOURS, strict=False)
    )
    return f"<figure><figcaption>{escape(title)}<span>{keys}</span></figcaption>{''.join(parts)}</figure>"


def _ticks(end: float) -> list[float]:
    """Round numbers from 0 to at most `end`, four to eight of them."""
    raw = end / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    return [round(step * i, 10) for i in range(int(end / step + 1e-9) + 1)]


def _thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(points) <= MAX_POINTS:
        return points
    stride = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(i * stride)] for i in range(MAX_POINTS)]


def _path(points: Sequence[tuple[float, float]], steps: bool) -> str:
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}")
    return "".join(parts)
