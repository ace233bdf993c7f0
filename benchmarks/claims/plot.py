"""What grows from step to step as a picture, in SVG: lines over axes with units, and where and when it was taken."""

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _TOP, _NAME = 760, 74, 20
_AXIS, _LINE_WIDTH, _LINE_HEIGHT = 76, 620, 300
_COLOURS = ("#c9c9d1", "#2e86ab", "#e4572e")
_STYLE = "text{font:12px system-ui,sans-serif;fill:#8a8a95}.title{font-weight:600;font-size:13px}"


def draw_growth(title: str, lines: Mapping[str, Sequence[float]], *, unit: str, caption: str = "") -> str:
    """Lines from step to step, the first of them without the technique."""
    most = _round_up(max(max(values) for values in lines.values()))
    base, num_steps = _LINE_HEIGHT - 56, max(map(len, lines.values()))
    colours = dict(zip(lines, _COLOURS, strict=False))
    across = _LINE_WIDTH / max(1, num_steps - 1)
    every = max(1, round(num_steps / 10))
    return _svg(
        title,
        _LINE_HEIGHT,
        "".join(_legend(_AXIS + 170 * i, colour, name) for i, (name, colour) in enumerate(colours.items())),
        *(_draw_tick(most * part / 4, most, base) for part in range(5)),
        *(_draw_line(values, most, base, across, colours[name]) for name, values in lines.items()),
        *(
            f'<text x="{_AXIS + i * across:.1f}" y="{base + 18}" text-anchor="middle">{i + 1}</text>'
            for i in range(0, num_steps, every)
        ),
        f'<text x="{_AXIS + _LINE_WIDTH}" y="{base + 36}" text-anchor="end">step</text>',
        f'<text x="{_NAME}" y="{_TOP - 8}">{escape(unit)}</text>',
        f'<text x="{_AXIS}" y="{base + 36}">{escape(caption)}</text>',
    )


def _round_up(value: float) -> float:
    """To a number of which a quarter is easily read."""
    power = 10.0 ** math.floor(math.log10(max(value, 1)))
    return next(power * step for step in (1, 2, 4, 6, 8, 10) if power * step >= value)


def _draw_tick(value: float, most: float, base: float) -> str:
    y = base - (base - _TOP) * value / most
    return (
        f'<path d="M{_AXIS} {y:.1f}H{_AXIS + _LINE_WIDTH}" stroke="#8a8a95" stroke-opacity="0.3"/>'
        f'<text x="{_AXIS - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
    )


def _svg(title: str, height: int, *parts: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<text class="title" x="{_NAME}" y="22">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _draw_line(values: Sequence[float], most: float, base: float, across: float, colour: str) -> str:
    points = [(_AXIS + i * across, base - (base - _TOP) * value / most) for i, value in enumerate(values)]
    (x, y), path = points[-1], " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        f'<text x="{x + 6:.1f}" y="{y + 4:.1f}">{values[-1]:,.0f}</text>'
    )


def _legend(left: int, colour: str, text: str) -> str:
    square = f'<rect x="{left}" y="34" width="11" height="11" fill="{colour}"/>'
    return f'{square}<text x="{left + 17}" y="44">{text}</text>'
