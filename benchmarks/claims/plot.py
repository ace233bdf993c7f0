"""The results as pictures, in SVG: for each claim how many times better is published and was measured, on a logarithmic
scale; and lines that grow from step to step.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from benchmarks.claims.published import CLAIMS
from benchmarks.claims.result import Result

_WIDTH, _TOP, _NAME, _LEFT, _BAR, _THICK = 760, 58, 20, 220, 400, 13
_LINE_WIDTH, _LINE_HEIGHT = 640, 260
_PUBLISHED, _CPU, _GPU = "#c9c9d1", "#e4572e", "#2e86ab"
_STYLE = "text{font:12px system-ui,sans-serif;fill:#8a8a95}.title{font-weight:600;font-size:13px}"


def draw_claims(cpu: Mapping[str, Result], gpu: Mapping[str, Result]) -> str:
    """A bar for what is published and one for each machine it was measured on."""
    rows = [(name, claim.bars, [*_measured(name, cpu, gpu)]) for name, claim in CLAIMS.items() if claim.bars]
    shown = [(name, bars, measured) for name, bars, measured in rows if measured]
    most = max([2.0, *(bars[1] for _, bars, _ in shown), *(max(times) for *_, many in shown for times, _ in many)])
    parts, top = [], _TOP
    for name, bars, measured in shown:
        parts.append(f'<text x="{_NAME}" y="{top + 11}">{escape(name)}</text>')
        for (least, times), colour in [(bars, _PUBLISHED), *(((min(each), max(each)), c) for each, c in measured)]:
            parts.append(_draw_bar(top, least, times, most, colour))
            top += _THICK
        top += 10
    legend = (("published", _PUBLISHED), ("measured on a CPU", _CPU), ("on a GPU", _GPU))
    return _svg(
        "How many times better, published and measured",
        top + 24,
        "".join(_legend(_LEFT + 150 * i, colour, text) for i, (text, colour) in enumerate(legend)),
        *parts,
        f'<path d="M{_LEFT} {_TOP - 8}V{top}" stroke="#8a8a95"/>',
        *_draw_scale(most, top),
    )


def _draw_scale(most: float, top: int) -> Iterator[str]:
    """What the logarithmic scale stands at."""
    for times in (1, 2, 5, 10, 20, 50, 100):
        if times <= most:
            x = _LEFT + _BAR * math.log(times) / math.log(most)
            yield f'<path d="M{x:.1f} {_TOP - 8}V{top}" stroke="#8a8a95" stroke-opacity="0.25"/>'
            yield f'<text x="{x:.1f}" y="{top + 14}" text-anchor="middle">{times}×</text>'
    yield f'<text x="{_NAME}" y="{top + 14}">logarithmic scale</text>'


def _measured(name: str, cpu: Mapping[str, Result], gpu: Mapping[str, Result]) -> Iterator[tuple[Sequence[float], str]]:
    for results, colour in ((cpu, _CPU), (gpu, _GPU)):
        if name in results and (times := CLAIMS[name].times(results[name])):
            yield times, colour


def draw_growth(title: str, lines: Mapping[str, Sequence[float]]) -> str:
    """Two lines from step to step, the first of them without the technique."""
    most = max(max(values) for values in lines.values())
    base = _LINE_HEIGHT - 40
    colours = dict(zip(lines, (_PUBLISHED, _CPU), strict=True))
    num_steps = len(next(iter(lines.values())))
    return _svg(
        title,
        _LINE_HEIGHT,
        "".join(_legend(_NAME + 130 * i, colour, name) for i, (name, colour) in enumerate(colours.items())),
        *(_draw_line(values, most, base, colours[name]) for name, values in lines.items()),
        f'<path d="M{_NAME} {base}H{_NAME + _LINE_WIDTH}" stroke="#8a8a95"/>',
        f'<text x="{_NAME}" y="{base + 18}">step 1; the line is 0</text>',
        f'<text x="{_NAME + _LINE_WIDTH}" y="{base + 18}" text-anchor="end">step {num_steps}</text>',
    )


def _svg(title: str, height: int, *parts: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<text class="title" x="{_NAME}" y="22">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _draw_line(values: Sequence[float], most: float, base: float, colour: str) -> str:
    step = _LINE_WIDTH / max(1, len(values) - 1)
    points = [(_NAME + i * step, base - (base - _TOP) * value / most) for i, value in enumerate(values)]
    (x, y), path = points[-1], " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        f'<text x="{x + 8:.1f}" y="{y + 4:.1f}">{values[-1]:,.0f}</text>'
    )


def _legend(left: int, colour: str, text: str) -> str:
    square = f'<rect x="{left}" y="34" width="11" height="11" fill="{colour}"/>'
    return f'{square}<text x="{left + 17}" y="44">{text}</text>'


def _draw_bar(top: int, least: float, times: float, most: float, colour: str) -> str:
    """From 1 on, paler where it is a range; what is worse than without has no length, and its figure says so."""
    sure, width = (max(1.0, _BAR * math.log(max(1.0, each)) / math.log(most)) for each in (least, times))
    figure = f"{times:.2f}×" if math.isclose(least, times, rel_tol=0.005) else f"{least:.2f} to {times:.2f}×"
    return (
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_THICK - 1}" rx="2" fill="{colour}" opacity="0.5"/>'
        f'<rect x="{_LEFT}" y="{top}" width="{sure:.1f}" height="{_THICK - 1}" rx="2" fill="{colour}"/>'
        f'<text x="{_LEFT + width + 6:.1f}" y="{top + 10}">{figure}</text>'
    )
