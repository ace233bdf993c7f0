"""The picture of the README, light and dark, from the requests in examples/: what of each prompt a prefix cache finds,
as it was sent and as `hotloop lint --fix` rewrites it. `make docs` writes it, a test checks that it is up to date.
"""

import tempfile
from pathlib import Path

from hotloop.cli.main import run
from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.meter import Meter
from hotloop.lint.requests import read_requests

ROOT = Path(__file__).parents[1]
REQUESTS = ROOT / "examples" / "clock.requests.jsonl"

_WIDTH, _LEFT, _BAR, _GAP = 860, 96, 18, 8
LIGHT = ("#3d8f5f", "#c8543c", "#8a8f98", "#1c2128", "#ffffff")
DARK = ("#4fae78", "#ec6a4c", "#767d8a", "#e4e6ea", "#0d1117")
"""What is found, recomputed and new, the text, and what is behind it."""
PICTURES = {"prefix-map.svg": LIGHT, "prefix-map-dark.svg": DARK}
_STYLE = "font-family='system-ui, sans-serif' font-size='13'"


def shares(path: Path) -> list[tuple[int, int, int]]:
    """Of each prompt how many tokens are found, recomputed and new, as `hotloop lint` counts them."""
    [conversation] = sort_into_runs(read_requests(path), Meter())
    rows = []
    for step in conversation.steps:
        num_prompt, before = step.scale.total(step.request.parts), step.before
        num_known = step.scale.total((*before.parts, *before.answer.parts)) if before else 0
        num_found = min(num_known, num_prompt) - step.num_lost
        rows.append((num_found, step.num_lost, num_prompt - num_found - step.num_lost))
    return rows


def fixed_shares() -> list[tuple[int, int, int]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "fixed.jsonl"
        run(["lint", str(REQUESTS), "--fix", "--out", str(out), "--fail-on", "never", "--format", "github"])
        return shares(out)


def draw(colours: tuple[str, str, str, str, str]) -> str:
    *kinds, ink, paper = colours
    panels = (
        ("As sent: line 2 of the system prompt is “The time is 10:00:31.”", shares(REQUESTS)),
        ("After hotloop lint --fix: the time is said in the newest message", fixed_shares()),
    )
    most = max(sum(row) for _, rows in panels for row in rows)
    scale = (_WIDTH - _LEFT - 90) / most
    parts, y = [], 20
    for title, rows in panels:
        parts.append(f"<text x='8' y='{y}' font-weight='600'>{title}</text>")
        y += 12
        for i, row in enumerate(rows):
            x = float(_LEFT)
            parts.append(f"<text x='8' y='{y + 14}'>request {i + 1}</text>")
            for count, colour in zip(row, kinds, strict=True):
                parts.append(f"<rect x='{x:.1f}' y='{y}' width='{count * scale:.1f}' height='{_BAR}' fill='{colour}'/>")
                x += count * scale
            parts.append(f"<text x='{x + 6:.1f}' y='{y + 14}'>{sum(row):,}</text>")
            y += _BAR + _GAP
        y += 22
    for i, (colour, word) in enumerate(zip(kinds, ("found in the cache", "recomputed", "new"), strict=True)):
        parts.append(f"<rect x='{_LEFT + 180 * i}' y='{y - 12}' width='12' height='12' fill='{colour}'/>")
        parts.append(f"<text x='{_LEFT + 180 * i + 18}' y='{y - 2}'>{word}</text>")
    parts.append(f"<text x='{_WIDTH - 8}' y='{y - 2}' text-anchor='end'>prompt tokens, to scale from 0</text>")
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {y + 10}' {_STYLE} fill='{ink}'>"
    return "\n".join([head, f"<rect width='100%' height='100%' fill='{paper}'/>", *parts, "</svg>", ""])


if __name__ == "__main__":
    for name, colours in PICTURES.items():
        (ROOT / "docs" / name).write_text(draw(colours), encoding="utf-8")
