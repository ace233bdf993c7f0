"""The rows as pictures, in SVG: for each, how many times better is claimed and was measured, on a logarithmic scale;
and of one, how its two figures grow with every step.
"""

import math
from collections.abc import Sequence
from html import escape

from benchmarks.claims.row import Row

_WIDTH, _ROW, _TOP, _NAME, _LEFT, _BAR = 760, 40, 58, 20, 180, 480
_GROWTH_WIDTH, _GROWTH_HEIGHT = 640, 260
_CLAIMED, _MEASURED = "#c9c9d1", "#e4572e"
_STYLE = "text{font:12px system-ui,sans-serif;fill:#8a8a95}.title{font-weight:600;font-size:13px}"


def draw(rows: Sequence[Row]) -> str:
    shown = [row for row in rows if row.times is not None]
    most = max([2.0, *(row.times or 0.0 for row in shown), *(row.claim.times[1] for row in shown if row.claim.times)])
    height = _TOP + _ROW * len(shown) + 24
    bars = [_draw_row(row, _TOP + i * _ROW, most) for i, row in enumerate(shown)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
        f"<title>How many times better, claimed and measured</title><style>{_STYLE}</style>"
        f'<text class="title" x="{_NAME}" y="22">How many times better</text>'
        f"{_legend(_LEFT, _CLAIMED, 'claimed')}{_legend(_LEFT + 90, _MEASURED, 'measured here')}"
        f'{"".join(bars)}<path d="M{_LEFT} {_TOP - 8}V{height - 20}" stroke="#8a8a95"/></svg>\n'
    )


def draw_growth(row: Row) -> str:
    """Two lines from step to step; `row` has a growth."""
    assert row.growth, "only what grows is drawn"
    before, after = row.growth
    most = max(*before, *after, 1.0)
    base = _GROWTH_HEIGHT - 40
    lines = "".join(
        _draw_line(values, most, base, colour) for values, colour in ((before, _CLAIMED), (after, _MEASURED))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_GROWTH_HEIGHT}" role="img">'
        f"<title>{escape(row.what)}</title><style>{_STYLE}</style>"
        f'<text class="title" x="{_NAME}" y="22">{escape(row.what)}</text>'
        f"{_legend(_NAME, _CLAIMED, 'without reuse')}{_legend(_NAME + 130, _MEASURED, 'with it')}"
        f'{lines}<path d="M{_NAME} {base}H{_NAME + _GROWTH_WIDTH}" stroke="#8a8a95"/>'
        f'<text x="{_NAME}" y="{base + 18}">step 1</text>'
        f'<text x="{_NAME + _GROWTH_WIDTH}" y="{base + 18}" text-anchor="end">step {len(before)}</text></svg>\n'
    )


def _draw_line(values: Sequence[float], most: float, base: float, colour: str) -> str:
    step = _GROWTH_WIDTH / max(1, len(values) - 1)
    points = [(_NAME + i * step, base - (base - _TOP) * value / most) for i, value in enumerate(values)]
    (x, y), path = points[-1], " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        f'<text x="{x + 8:.1f}" y="{y + 4:.1f}">{values[-1]:,.0f}</text>'
    )


def _legend(left: int, colour: str, text: str) -> str:
    square = f'<rect x="{left}" y="34" width="11" height="11" fill="{colour}"/>'
    return f'{square}<text x="{left + 17}" y="44">{text}</text>'


def _draw_row(row: Row, top: int, most: float) -> str:
    name = f'<text x="{_NAME}" y="{top + 18}">{escape(row.name)}</text>'
    claimed = _draw_bar(top, *row.claim.times, most, _CLAIMED) if row.claim.times else ""
    measured = row.times or 1.0
    return f"{name}{claimed}{_draw_bar(top + 14, measured, measured, most, _MEASURED)}"


def _draw_bar(top: int, least: float, times: float, most: float, colour: str) -> str:
    """From 1 on, paler where it is a range; what is worse than without has no length, and its figure says so."""
    sure, width = (max(1.0, _BAR * math.log(max(1.0, each)) / math.log(most)) for each in (least, times))
    figure = f"{times:.2f}×" if least == times else f"{least:.2f} to {times:.2f}×"
    return (
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="12" rx="2" fill="{colour}" opacity="0.5"/>'
        f'<rect x="{_LEFT}" y="{top}" width="{sure:.1f}" height="12" rx="2" fill="{colour}"/>'
        f'<text x="{_LEFT + width + 6:.1f}" y="{top + 11}">{figure}</text>'
    )
