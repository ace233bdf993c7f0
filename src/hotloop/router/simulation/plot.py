"""A simulation as a picture: for each policy how much was not read again, and how uneven the work was. Plain SVG."""

from collections.abc import Sequence
from html import escape

from hotloop.router.simulate import Figures

_WIDTH, _ROW, _LEFT, _BAR = 760, 44, 150, 480
_STYLE = "font: 13px system-ui, sans-serif; fill: #334"


def draw(figures: Sequence[Figures], title: str) -> str:
    """Bars from 0 to 1; the line is what one replica with room for everything would have."""
    height = _ROW * len(figures) + 70
    ideal = _LEFT + _BAR * max((each.ideal_rate for each in figures), default=0.0)
    rows = "".join(_draw_row(each, 44 + i * _ROW) for i, each in enumerate(figures))
    line = (
        f'<line x1="{ideal:.1f}" x2="{ideal:.1f}" y1="36" y2="{height - 24}" stroke="#c33" stroke-dasharray="4 3"/>'
        f'<text x="{ideal:.1f}" y="{height - 8}" text-anchor="middle" style="{_STYLE}">one cache for all</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="12" y="22" style="{_STYLE}; font-weight: 600">{escape(title)}</text>{rows}{line}</svg>\n'
    )


def _draw_row(figures: Figures, top: int) -> str:
    told = f"{figures.hit_rate:.1%}, busiest {figures.imbalance:.2f}x, first word p95 {figures.ttft_s(95):.2f} s"
    return (
        f'<text x="12" y="{top + 15}" style="{_STYLE}">{escape(figures.policy)}</text>'
        f'<rect x="{_LEFT}" y="{top}" width="{_BAR * figures.hit_rate:.1f}" height="14" rx="2" fill="#47a"/>'
        f'<text x="{_LEFT}" y="{top + 29}" style="{_STYLE}; font-size: 11px">{escape(told)}</text>'
    )
