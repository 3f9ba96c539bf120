"""Line charts as SVG: no script, no font and no style sheet from elsewhere."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "cdf", "chart", "document"]

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
    """An SVG element in a figure, styled by the page around it. Both axes start at 0. Without points it says so."""
    shown = [line for line in lines if line.points]
    drawn = "".join(_drawing(x_label, y_label, shown, y_max))
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(line.name)}</span>'
        for line, colour in zip(shown, COLOURS, strict=False)
    )
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{drawn}</svg>'
    return f"<figure><figcaption>{escape(title)}<span>{keys}</span></figcaption>{svg}</figure>"


def document(title: str, x_label: str, y_label: str, lines: Sequence[Line], *, y_max: float | None = None) -> str:
    """The same as an SVG file of its own, with title, keys and style."""
    shown = [line for line in lines if line.points]
    head = 26 + 17 * len(shown)
    keys = "".join(
        f'<rect x="{LEFT}" y="{27 + 17 * i}" width="14" height="3" fill="{colour}"/>'
        f'<text x="{LEFT + 20}" y="{32 + 17 * i}">{escape(line.name)}</text>'
        for i, (line, colour) in enumerate(zip(shown, COLOURS, strict=False))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + head}" role="img" '
        f'aria-label="{escape(title)}"><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>{keys}'
        f'<g transform="translate(0 {head})">{"".join(_drawing(x_label, y_label, shown, y_max))}</g></svg>\n'
    )


_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#475569}.title{font-weight:600;font-size:14px;fill:#0f172a}"
    ".grid{stroke:#e2e8f0}"
)


def _drawing(x_label: str, y_label: str, shown: Sequence[Line], y_max: float | None) -> Iterator[str]:
    """Axes and lines."""
    x_end = max((line.points[-1][0] for line in shown), default=0.0) or 1.0
    y_end = y_max or max((y for line in shown for _, y in line.points), default=0.0) * 1.05 or 1.0
    x_scale, y_scale = (WIDTH - LEFT - RIGHT) / x_end, (HEIGHT - TOP - BOTTOM) / y_end

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x * x_scale, HEIGHT - BOTTOM - y * y_scale

    for x in _ticks(x_end):
        at = place(x, 0)[0]
        yield f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>'
    for y in _ticks(y_end):
        at = place(0, y)[1]
        yield f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>'
    middle = (HEIGHT - BOTTOM + TOP) / 2
    yield (
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
        f'<text class="axis" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    for line, colour in zip(shown, COLOURS, strict=False):
        drawn = [place(x, y) for x, y in _thin(line.points)]
        yield f'<path d="{_path(drawn, line.steps)}" fill="none" stroke="{colour}" stroke-width="2"/>'
    if not shown:
        yield f'<text class="axis" x="{WIDTH / 2}" y="{middle}" text-anchor="middle">no data</text>'


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
