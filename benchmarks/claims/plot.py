"""What grows from step to step, or with time, as a picture in SVG: lines over axes with units, and where and when."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

_WIDTH, _TOP, _NAME = 760, 74, 20
_AXIS, _LINE_WIDTH, _LINE_HEIGHT = 76, 620, 300
_GREY = "#8a8a95"
_APART = 13
"""At least between two numbers, from top to top."""
DASHED = '" stroke-dasharray="5 4'  # behind a colour


def draw_growth(
    title: str,
    lines: Mapping[str, Sequence[float]],
    colours: Sequence[str],
    *,
    unit: str,
    caption: str = "",
    along: str = "step",
    first: int = 1,
    every: int = 1,
) -> str:
    """Lines from point to point, `every` of what is `along` apart. `colours` are those of lines, of the text and of
    what is behind it; where there are more lines than colours, those that come later are dashed."""
    *own, ink, behind = colours
    most = _round_up(max(max(values) for values in lines.values()))
    base, num_points = _LINE_HEIGHT - 56, max(map(len, lines.values()))
    styles = dict(zip(lines, [*own, *(f"{colour}{DASHED}" for colour in own)], strict=False))
    across = _LINE_WIDTH / max(1, num_points - 1)
    labelled = next(step for step in (1, 2, 3, 5, 10, 25, 50, 100, 250) if num_points <= 12 * step)
    parts = [
        *(_legend(_AXIS + 160 * i, name, style) for i, (name, style) in enumerate(styles.items())),
        *(_draw_tick(most * part / 4, most, base) for part in range(5)),
        *(_draw_line(values, most, base, across, styles[name]) for name, values in lines.items()),
        *_draw_ends(
            [(*_point(len(values) - 1, values[-1], most, base, across), values[-1]) for values in lines.values()]
        ),
        *(
            f'<text x="{_AXIS + i * across:.1f}" y="{base + 18}" text-anchor="middle">{first + i * every}</text>'
            for i in range(0, num_points, labelled)
        ),
        f'<text x="{_AXIS + _LINE_WIDTH}" y="{base + 36}" text-anchor="end">{along}</text>',
        f'<text x="{_NAME}" y="{_TOP - 8}">{escape(unit)}</text>',
        f'<text x="{_AXIS}" y="{base + 36}">{escape(caption)}</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_LINE_HEIGHT}" role="img" fill="{ink}" '
        f'font-family="system-ui, sans-serif" font-size="12"><title>{escape(title)}</title>'
        f'<rect width="{_WIDTH}" height="{_LINE_HEIGHT}" fill="{behind}"/>'
        f'<text font-weight="600" font-size="13" x="{_NAME}" y="22">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _round_up(value: float) -> float:
    """To a number of which a quarter is easily read."""
    power = 10.0 ** math.floor(math.log10(max(value, 1)))
    return next(power * step for step in (1, 2, 4, 6, 8, 10) if power * step >= value)


def _draw_tick(value: float, most: float, base: float) -> str:
    y = base - (base - _TOP) * value / most
    return (
        f'<path d="M{_AXIS} {y:.1f}H{_AXIS + _LINE_WIDTH}" stroke="{_GREY}" stroke-opacity="0.3"/>'
        f'<text x="{_AXIS - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
    )


def _draw_line(values: Sequence[float], most: float, base: float, across: float, style: str) -> str:
    points = (_point(i, value, most, base, across) for i, value in enumerate(values))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke-width="2.5" stroke="{style}"/>'


def _point(i: int, value: float, most: float, base: float, across: float) -> tuple[float, float]:
    return _AXIS + i * across, base - (base - _TOP) * value / most


def _draw_ends(ends: Sequence[tuple[float, float, float]]) -> Iterator[str]:
    """The number at the end of each line, none on another; lines that end alike have one."""
    above, drawn = -math.inf, ""
    for x, y, value in sorted(ends, key=lambda end: (end[1], -end[0])):
        text = f"{value:,.0f}"
        if text != drawn:
            above, drawn = max(y, above + _APART), text
            yield f'<text x="{x + 6:.1f}" y="{above + 4:.1f}">{text}</text>'


def _legend(left: int, text: str, style: str) -> str:
    line = f'<path d="M{left} 40h16" stroke-width="4" stroke="{style}"/>'
    return f'{line}<text x="{left + 22}" y="44">{escape(text)}</text>'
