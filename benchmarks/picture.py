"""Draws docs/turns.svg: what each turn of an agent reads and how long its user waits, naive and with hotloop.

python -m benchmarks.picture docs/turns.svg
"""

import sys
from pathlib import Path

from benchmarks.serving import replay_child
from hotloop.bench.replay import Progress, ReplayedTurn
from hotloop.bench.serving import NAIVE, exit_on_sigterm
from hotloop.bench.workload import generate_jobs

NUM_TURNS = 8
WIDTH, HEIGHT, LEFT, BAR = 760, 300, 40, 30
NAIVE_COLOUR, OUR_COLOUR, GRID_COLOUR = "#c9c9d1", "#e4572e", "#8a8a95"


def main() -> int:
    exit_on_sigterm()
    jobs = generate_jobs(num_jobs=1, num_turns=NUM_TURNS, num_output=24)
    runs: list[list[ReplayedTurn]] = []
    for flags in (NAIVE, ()):
        steps: list[ReplayedTurn] = []

        def watch(progress: Progress, steps: list[ReplayedTurn] = steps) -> None:
            if progress.step:
                steps.append(progress.step)

        replay_child("", flags, jobs, num_agents=1, watch=watch)
        runs.append(steps)
    Path(sys.argv[1]).write_text(draw(*runs))
    return 0


def draw(naive: list[ReplayedTurn], ours: list[ReplayedTurn]) -> str:
    tokens = [[float(step.usage.num_prompt - step.usage.num_cached) for step in run] for run in (naive, ours)]
    waits = [[step.ttft_s * 1000 for step in run] for run in (naive, ours)]
    panels = [
        _panel(0, "prompt tokens prefilled each turn", *tokens),
        _panel(WIDTH // 2, "time to first token, ms", *waits),
    ]
    style = "text{font:12px system-ui,sans-serif;fill:#8a8a95}.title{font-weight:600;font-size:13px}"
    legend = (
        f'<rect x="{LEFT}" y="{HEIGHT - 18}" width="11" height="11" fill="{NAIVE_COLOUR}"/>'
        f'<text x="{LEFT + 17}" y="{HEIGHT - 8}">naive loop: everything is recomputed</text>'
        f'<rect x="{LEFT + 270}" y="{HEIGHT - 18}" width="11" height="11" fill="{OUR_COLOUR}"/>'
        f'<text x="{LEFT + 287}" y="{HEIGHT - 8}">hotloop: only what is new</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>What each turn of an agent costs</title><style>{style}</style>{''.join(panels)}{legend}</svg>\n"
    )


def _panel(left: int, title: str, naive: list[float], ours: list[float]) -> str:
    base, top = HEIGHT - 50, 50
    scale = (base - top) / max(naive + ours)
    parts = [f'<text class="title" x="{left + LEFT}" y="24">{title}</text>']
    for turn, pair in enumerate(zip(naive, ours, strict=True)):
        for i, (value, colour) in enumerate(zip(pair, (NAIVE_COLOUR, OUR_COLOUR), strict=True)):
            x, height = left + LEFT + turn * 40 + i * BAR // 2, max(1.0, value * scale)
            parts.append(
                f'<rect x="{x}" y="{base - height:.1f}" width="{BAR // 2 - 1}" height="{height:.1f}" fill="{colour}"/>'
            )
        parts.append(f'<text x="{left + LEFT + turn * 40 + 9}" y="{base + 16}">{turn + 1}</text>')
    last = left + LEFT + (len(naive) - 1) * 40
    parts.append(f'<text x="{last - 8}" y="{base - naive[-1] * scale - 6:.1f}">{naive[-1]:,.0f}</text>')
    parts.append(f'<text x="{last + 31}" y="{base - ours[-1] * scale - 3:.1f}">{ours[-1]:,.0f}</text>')
    parts.append(f'<line x1="{left + LEFT}" y1="{base}" x2="{last + 40}" y2="{base}" stroke="{GRID_COLOUR}"/>')
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())
