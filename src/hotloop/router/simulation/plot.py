"""A simulation as a picture: for each policy how much was cached, and how uneven the work was. Plain SVG."""

from collections.abc import Sequence
from html import escape

from hotloop.router.simulation.simulate import Figures

_WIDTH, _ROW, _TOP, _BAR = 760, 30, 62, 200
_NAME, _HIT, _EXCESS = 20, 150, 450
"""Where the columns begin."""
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5f5f6b}.title{font-weight:600;font-size:13px}.other{fill:#9a9aa6}"
    "@media(prefers-color-scheme:dark){text{fill:#b4b4be}.other{fill:#767d8a}}"
)


def draw(figures: Sequence[Figures], title: str) -> str:
    """Two bars a policy, the first policy in colour; the line is what one replica with room for everything has."""
    bottom = _TOP + _ROW * len(figures)
    most = max([1.0, *(each.imbalance - 1 for each in figures)])
    rows = []
    for i, each in enumerate(figures):
        top, colour, excess = _TOP + i * _ROW, 'class="other"' if i else 'fill="#e4572e"', each.imbalance - 1
        rows.append(f'<text x="{_NAME}" y="{top + 13}">{escape(each.policy)}</text>')
        rows.append(_draw_bar(_HIT, top, _BAR * each.hit_rate, colour, f"{each.hit_rate:.1%}"))
        rows.append(_draw_bar(_EXCESS, top, _BAR * excess / most, colour, f"+{excess:.0%}"))
    ideal = _HIT + _BAR * max((each.ideal_rate for each in figures), default=0.0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 24}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<text class="title" x="{_NAME}" y="22">{escape(title)}</text>'
        f'<text x="{_HIT}" y="48">prompt tokens cached</text>'
        f'<text x="{_EXCESS}" y="48">busiest replica, more than the mean</text>{"".join(rows)}'
        f'<path d="M{ideal:.1f} {_TOP - 6}V{bottom}" stroke="#8a8a95" stroke-dasharray="3 3"/>'
        f'<text x="{ideal:.1f}" y="{bottom + 14}" text-anchor="middle">one cache for all</text></svg>\n'
    )


def _draw_bar(left: int, top: int, width: float, colour: str, label: str) -> str:
    return (
        f'<rect x="{left}" y="{top}" width="{max(1.0, width):.1f}" height="18" rx="2" {colour}/>'
        f'<text x="{left + max(1.0, width) + 6:.1f}" y="{top + 13}">{label}</text>'
    )
