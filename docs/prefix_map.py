"""The picture of the README, light and dark, from the requests in examples/: what of each prompt a prefix cache finds,
as it was sent and as `hotloop lint --fix` rewrites it. `make docs` writes it, a test checks that it is up to date.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hotloop.cli.main import run
from hotloop.lint.meter import Meter

ROOT = Path(__file__).parents[1]
REQUESTS = ROOT / "examples" / "clock.requests.jsonl"

_WIDTH, _LEFT, _BAR, _GAP = 860, 96, 18, 8
LIGHT = ("#3d8f5f", "#c8543c", "#8a8f98", "#1c2128", "#ffffff")
DARK = ("#4fae78", "#ec6a4c", "#767d8a", "#e4e6ea", "#0d1117")
"""What is found, recomputed and new, the text, and what is behind it."""
PICTURES = {"prefix-map.svg": LIGHT, "prefix-map-dark.svg": DARK}
_STYLE = "font-family='system-ui, sans-serif' font-size='13'"


def prompts_of(path: Path) -> list[str]:
    """Each request as one text, in the order in which it is read."""
    requests = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return ["".join(json.dumps(each) for each in (*request["tools"], *request["messages"])) for request in requests]


def shares(prompts: Sequence[str]) -> list[tuple[int, int, int]]:
    """Of each prompt how many tokens are found, recomputed and new: what the prompt before had, too, could be found."""
    meter, before, rows = Meter(), "", []
    for prompt in prompts:
        pairs = enumerate(zip(before, prompt, strict=False))
        common = next((i for i, (one, other) in pairs if one != other), min(len(before), len(prompt)))
        known = max(len(before), common) if before else 0
        counts = [meter.count(part) for part in (prompt[:common], prompt[common:known], prompt[known:])]
        rows.append((counts[0], counts[1], counts[2]))
        before = prompt
    return rows


def fixed_prompts() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "fixed.jsonl"
        run(["lint", str(REQUESTS), "--fix", "--out", str(out), "--fail-on", "never", "--format", "github"])
        return prompts_of(out)


def draw(colours: tuple[str, str, str, str, str]) -> str:
    *kinds, ink, paper = colours
    panels = (
        ("As sent: line 2 of the system prompt is “The time is 10:00:31.”", shares(prompts_of(REQUESTS))),
        ("After hotloop lint --fix: the time is said in the newest message", shares(fixed_prompts())),
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
