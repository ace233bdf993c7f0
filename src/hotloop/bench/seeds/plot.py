"""The rows as a picture: for each, how many times better is claimed and was measured, on a logarithmic scale. SVG."""

import math
from collections.abc import Sequence
from html import escape

from hotloop.bench.seeds.row import Row

_WIDTH, _ROW, _TOP, _NAME, _LEFT, _BAR = 760, 40, 58, 20, 180, 480
_CLAIMED, _MEASURED = "#c9c9d1", "#e4572e"
_STYLE = "text{font:12px system-ui,sans-serif;fill:#8a8a95}.title{font-weight:600;font-size:13px}"


def draw(rows: Sequence[Row]) -> str:
    shown = [row for row in rows if row.times is not None]
    most = max([2.0, *(row.times or 0.0 for row in shown), *(row.claim.times or 0.0 for row in shown)])
    height = _TOP + _ROW * len(shown) + 24
    bars = [_draw_row(row, _TOP + i * _ROW, most) for i, row in enumerate(shown)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
        f"<title>How many times better, claimed and measured</title><style>{_STYLE}</style>"
        f'<text class="title" x="{_NAME}" y="22">How many times better</text>'
        f"{_legend(_LEFT, _CLAIMED, 'claimed')}{_legend(_LEFT + 90, _MEASURED, 'measured here')}"
        f'{"".join(bars)}<path d="M{_LEFT} {_TOP - 8}V{height - 20}" stroke="#8a8a95"/></svg>\n'
    )


def _legend(left: int, colour: str, text: str) -> str:
    square = f'<rect x="{left}" y="34" width="11" height="11" fill="{colour}"/>'
    return f'{square}<text x="{left + 17}" y="44">{text}</text>'


def _draw_row(row: Row, top: int, most: float) -> str:
    name = f'<text x="{_NAME}" y="{top + 18}">{escape(row.seed)}</text>'
    claimed = _draw_bar(top, row.claim.times, most, _CLAIMED) if row.claim.times else ""
    return f"{name}{claimed}{_draw_bar(top + 14, row.times or 1.0, most, _MEASURED)}"


def _draw_bar(top: int, times: float, most: float, colour: str) -> str:
    """From 1 on; what is worse than without has no length, and its figure says so."""
    width = max(1.0, _BAR * math.log(max(1.0, times)) / math.log(most))
    return (
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="12" rx="2" fill="{colour}"/>'
        f'<text x="{_LEFT + width + 6:.1f}" y="{top + 11}">{times:.2f}×</text>'
    )
