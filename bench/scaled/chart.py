"""The chart of a run: backlog above, processes below, over the same time axis. Plain SVG, built from strings."""

from __future__ import annotations

from collections.abc import Sequence

from scaled.watch import Sample

OURS, WAITING, INK, FAINT, GRID = "#0f766e", "#94a3b8", "#1e293b", "#64748b", "#e2e8f0"
WIDTH, LEFT, RIGHT = 960, 70, 20
TOP, HIGH, GAP, LOW, BELOW = 50, 230, 55, 130, 45
FONT = 'font-family="sans-serif" font-size="13"'


def draw(samples: Sequence[Sample], notes: Sequence[tuple[float, str]], title: str) -> str:
    """Return the chart as SVG. ``notes``: times, and what happened then."""
    seconds = samples[-1].at
    most = max(sample.backlog for sample in samples) or 1
    processes = max(sample.processes for sample in samples)
    bottom = TOP + HIGH
    low_top, low_bottom = bottom + GAP, bottom + GAP + LOW
    height = low_bottom + BELOW

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / seconds

    def high(backlog: float) -> float:
        return bottom - HIGH * backlog / (most * 1.15)  # leaves space for the notes

    def low(count: float) -> float:
        return low_bottom - LOW * count / (processes + 0.5)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(LEFT, 22, title, INK, bold=True),
        _text(LEFT, TOP - 8, "jobs ready and running", FAINT),
        _text(LEFT, low_top - 8, "worker processes", FAINT),
    ]
    for backlog in _ticks(most):
        parts += [_line(LEFT, high(backlog), WIDTH - RIGHT, high(backlog), GRID)]
        parts += [_text(LEFT - 8, high(backlog) + 4, f"{backlog:,}", FAINT, "end")]
    for count in range(processes + 1):
        parts += [
            _line(LEFT, low(count), WIDTH - RIGHT, low(count), GRID),
            _text(LEFT - 8, low(count) + 4, str(count), FAINT, "end"),
        ]
    for second in range(0, int(seconds) + 1, 10):
        parts.append(_text(x(second), low_bottom + 20, f"{second} s", FAINT, "middle"))
    for at, note in notes:
        parts += [_line(x(at), top, x(at), to, FAINT, dashed=True) for top, to in ((TOP, bottom), (low_top, low_bottom))]
        parts.append(_text(x(at) + 5, TOP + 14, note, FAINT))
    area = " ".join(f"{x(sample.at):.1f},{high(sample.backlog):.1f}" for sample in samples)
    parts.append(
        f'<polygon points="{x(samples[0].at):.1f},{bottom} {area} {x(seconds):.1f},{bottom}" '
        f'fill="{WAITING}" fill-opacity="0.35" stroke="{WAITING}" stroke-width="1.5"/>'
    )
    steps, before = list[str](), samples[0]
    for sample in samples:
        steps += [f"{x(sample.at):.1f},{low(before.processes):.1f}", f"{x(sample.at):.1f},{low(sample.processes):.1f}"]
        before = sample
    parts.append(f'<polyline points="{" ".join(steps)}" fill="none" stroke="{OURS}" stroke-width="2.5"/>')
    return "\n".join([*parts, "</svg>", ""])


def _ticks(most: int) -> list[int]:
    step = 10 ** (len(str(most)) - 1)
    return list(range(0, most + 1, step if most // step >= 3 else max(1, step // 2)))


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" {FONT}{weight} fill="{colour}" text-anchor="{anchor}">{text}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"{dashes}/>'
