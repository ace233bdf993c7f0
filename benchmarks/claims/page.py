"""docs/benchmarks.md and the figures of README and docs/gpu.md from what is kept: `python -m benchmarks.claims.page`.
Nothing is typed.

docs/figures/claims-cpu.json    what `python -m benchmarks.claims --keep` measured
docs/figures/claims-gpu.json    what `python -m benchmarks.claims.gpu --keep` measured on a card
docs/figures/agents-gpu.json    recorded agents on a card, as `python -m benchmarks.gpu.served` measured them
docs/figures/earlier.json       tables of earlier versions, with the commands that took them
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.prefix_map import DARK, LIGHT

from benchmarks.claims.agents import EVERY_S, Run, read_run, render_all, render_few
from benchmarks.claims.plot import DASHED, draw_growth
from benchmarks.claims.published import CLAIMS, FLAT, MAX_SPREAD, MIN_REPEATS, SERVING, TOKENS, Claim, Device
from benchmarks.claims.result import Figure, Result, Unit, read_results
from hotloop.core.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
README, GPU = PAGE.parents[1] / "README.md", PAGE.with_name("gpu.md")
KEPT: Mapping[str, str] = {"cpu": "claims-cpu.json", "cuda": "claims-gpu.json"}
BEGIN = "<!-- figures: begin; written by `make benchmarks` from docs/figures -->"
END = "<!-- figures: end -->"

_INTRODUCTION = """## Published claims, reproduced
```bash
make benchmarks
python -m benchmarks.claims --keep --only loop    # one part, beside what is kept of the others
python -m benchmarks.claims.gpu --keep            # the same rows by the same code, on a card
```
measures all of this, keeps the figures in `docs/figures` and writes what follows from them; `python -m
benchmarks.claims.page` writes the page anew. Claims are as they were published, on other machines and with other
models. Figures are medians, baseline first; *×* is how many times better, with the least and the most of the repeats in
brackets. A claim holds if what is wanted is reached in the median: the lower bound of what was published, or something
near it where no bound was, as of what stays flat. There is no verdict from fewer than {MIN_REPEATS}
repeats, or where they are more than {MAX_SPREAD:.0%} apart. On a CPU the model is the default one, SmolLM2-135M, where
no other is named; on a card it is one of Llama-3.1-8B shapes with random weights, which say nothing of words: where
words matter, `--words` names a model. Tiers and a draft model want models of several sizes, `--small A --medium B
--large C`; everything together does on a CPU: on a card it has shapes of 1B and 8B, since all that is said is recorded.
`--data` and `--questions` take runs and questions of your own. Servers are started once for all rows of a command and
measured in turn."""
_HEAD = "| claim | published | wanted | baseline | on a CPU | on a GPU | does it hold? |\n|---|---|---|---|---|---|---|"
_DEVICES: Mapping[Device, str] = {"cpu": "CPU", "cuda": "GPU"}
_GROWTH = {
    "claims-loop": (TOKENS, "Prompt tokens prefilled in each turn of a loop", "tokens"),
    "claims-steps": (
        FLAT,
        "Time of each turn of one loop; measured at 1 to 5, 10, 18 and 26, straight lines between",
        "ms",
    ),
}
_SESSIONS = "agents-gpu", "Sessions of recorded coding agents done, by the seconds since the first began"


@dataclass(frozen=True, slots=True)
class Kept:
    """All results there are, by claim."""

    cpu: Mapping[str, Result]
    gpu: Mapping[str, Result]
    earlier: Sequence[Mapping[str, Any]]
    run: Run | None = None

    def of(self, device: Device) -> Mapping[str, Result]:
        return self.cpu if device == "cpu" else self.gpu


def read_kept(folder: Path) -> Kept:
    cpu, gpu = (
        {result.claim: result for result in read_results(path)} if (path := folder / name).exists() else {}
        for name in KEPT.values()
    )
    path = folder / "earlier.json"
    earlier = json.loads(path.read_text("utf-8")) if path.exists() else []
    return Kept(cpu, gpu, earlier, read_run(folder / "agents-gpu.json"))


def write_page(page: Path = PAGE) -> None:
    """Rewrite the sections between the marks, and the pictures beside the page."""
    kept = read_kept(page.with_name("figures"))
    sections = {page: render_section, **(OTHERS if page == PAGE else {})}
    try:
        for path, render in sections.items():
            path.write_text(replace_section(path.read_text("utf-8"), render(kept)), encoding="utf-8")
        for name, picture in draw_pictures(kept).items():
            page.with_name(f"{name}.svg").write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {page}: {error.strerror}") from None


def replace_section(text: str, section: str) -> str:
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"the page must have {BEGIN} and {END} once each")
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: section, text, count=1, flags=re.DOTALL)


def render_readme(kept: Kept) -> str:
    """Recorded agents in a few rows, and drawn."""
    lines = [kept.run.where, "", *_picture(*_SESSIONS, kept, "docs/"), *render_few(kept.run)] if kept.run else []
    return "\n".join([BEGIN, *lines, END])


def render_gpu(kept: Kept) -> str:
    """All that was measured of them."""
    lines = [kept.run.where, "", *render_all(kept.run)] if kept.run else []
    return "\n".join([BEGIN, *lines, END])


OTHERS: Mapping[Path, Callable[[Kept], str]] = {README: render_readme, GPU: render_gpu}


def draw_pictures(kept: Kept) -> dict[str, str]:
    """Each light and dark, of what there is."""
    drawn = {}
    for suffix, (found, computed, new, *rest) in {"": LIGHT, "-dark": DARK}.items():
        for name, (claim, title, unit) in _GROWTH.items():
            if (result := kept.cpu.get(claim)) and result.growth:
                taken = f"{result.taken.machine}, {result.taken.date}" if result.taken else ""
                colours = (computed, new, found + DASHED, *rest)  # the last two are often one
                drawn[f"{name}{suffix}"] = draw_growth(title, result.growth, colours, unit=unit, caption=taken)
        if kept.run and (lines := kept.run.lines()):
            drawn[f"{_SESSIONS[0]}{suffix}"] = draw_growth(
                _SESSIONS[1],
                lines,
                (found, computed, *rest),
                unit="sessions",
                caption=kept.run.when,
                along="s",
                first=0,
                every=EVERY_S,
            )
    return drawn


def _picture(name: str, title: str, kept: Kept, folder: str = "") -> list[str]:
    """Nothing where it is not drawn."""
    if name not in draw_pictures(kept):
        return []
    dark = f'  <source media="(prefers-color-scheme: dark)" srcset="{folder}{name}-dark.svg">'
    return ["<picture>", dark, f'  <img src="{folder}{name}.svg" alt="{title}">', "</picture>", ""]


def render_section(kept: Kept) -> str:
    pictures = ["\n".join(_picture(name, title, kept)).rstrip() for name, (_, title, _) in _GROWTH.items()]
    parts = [
        _render_counts(kept),
        "\n".join([_HEAD, *(_row(name, claim, kept) for name, claim in CLAIMS.items())]),
        *pictures,
        _render_serving(kept),
        _render_work(kept),
        _render_agents(kept),
        *map(_render_table, kept.earlier),
    ]
    introduction = _INTRODUCTION.format(MIN_REPEATS=MIN_REPEATS, MAX_SPREAD=MAX_SPREAD)
    return f"{BEGIN}\n{introduction}\n\n" + "\n\n".join(filter(None, parts)) + f"\n{END}"


def _render_counts(kept: Kept) -> str:
    """How many hold."""
    told = []
    for device, shown in _DEVICES.items():
        verdicts = (CLAIMS[name].verdict(result, device) for name, result in kept.of(device).items() if result.figures)
        counts = Counter(verdict.partition(" (")[0] for verdict in verdicts)
        if counts:
            words = ", ".join(
                f"{counts[word]} {word.replace('does', 'do').replace('holds', 'hold')}" for word in sorted(counts)
            )
            told.append(f"{counts.total()} taken on a {shown}: {words}")
    return f"Of {len(CLAIMS)} rows: " + "; ".join(told) + "." if told else ""


def _row(name: str, claim: Claim, kept: Kept) -> str:
    cells = [_measured(kept.of(device).get(name), claim.absent.get(device, "")) for device in _DEVICES]
    verdicts = [
        f"{shown}: {claim.verdict(result, device)}"
        for device, shown in _DEVICES.items()
        if (result := kept.of(device).get(name)) and result.figures
    ]
    return _line(name, claim.published, claim.wanted, claim.baseline, *cells, "; ".join(verdicts))


def _measured(result: Result | None, absent: str = "") -> str:
    if result is None:
        return f"not measured: {absent}" if absent else "not measured"
    return "; ".join(figure.shown() for figure in result.figures) or f"not measured: {result.missing}"


def _render_serving(kept: Kept) -> str:
    """Columns are the figures of the result on a card, rows the engines."""
    result = kept.gpu.get(SERVING)
    if result is None:
        return ""
    run, shown = kept.run, [_shown(figure.unit, figure.ours) for figure in result.figures]
    peers = {name: version for name, version in run.servers.items() if name != "hotloop"} if run else {}
    lines = [
        _line("", *(figure.name for figure in result.figures)),
        f"|---{'|---' * len(result.figures)}|",
        _line("transformers", *(_shown(figure.unit, figure.baseline) for figure in result.figures)),
        *(
            _line(
                f"{name} {version}",
                *(_shown(unit, run.rows.get(row, {}).get(name, {}).get(key, ())) for row, key, unit in _PEER),
            )
            for name, version in peers.items()
            if run
        ),
        _line("hotloop", *shown),
    ]
    about = f"**Serving, Llama-3.1-8B shapes** with random weights: {result.what}."
    when = f"; {' and '.join(peers)} on {run.when}" if run and peers else ""
    note = (
        f"Of a batch it is the median's first token{when}. TGI, SGLang and TensorRT-LLM were not run here. "
        "[More of it](gpu.md#measured)."
    )
    return "\n".join([about, note, "", *lines])


_PEER: tuple[tuple[str, str, Unit], ...] = (
    ("alone at 2,048", "output_tokens_s", "tokens/s"),
    ("alone at 2,048", "ttft_s", "s"),
    ("64 x (1,024 + 128)", "output_tokens_s", "tokens/s"),
    ("64 x (1,024 + 128)", "ttft_s", "s"),
)


def _shown(unit: Unit, values: Sequence[float]) -> str:
    """With a word where they are too far apart to say anything."""
    if not values:
        return "not taken"
    figure = Figure("", unit, values)
    return figure.show(values) + (": not measured well enough" if figure.spread > MAX_SPREAD else "")


def _render_work(kept: Kept) -> str:
    lines = [
        "| claim | on | what was measured | where, when, at which commit | repeats | spread |",
        "|---|---|---|---|---|---|",
    ]
    for name, claim in CLAIMS.items():
        for device, shown in _DEVICES.items():
            result = kept.of(device).get(name)
            if result and result.figures and (taken := result.taken):
                work = " ".join(filter(None, (f"{result.what}.", result.note)))
                figures = claim.needed(result) or result.figures
                commit = taken.commit or f"a commit of {taken.version}"
                where = f"{taken.machine}; {taken.date}, {commit}; `{taken.command}`"
                repeats = str(min(figure.num_repeats for figure in figures))
                lines.append(_line(name, shown, work, where, repeats, f"{claim.spread(result):.0%}"))
    return "\n".join(lines) if len(lines) > 2 else ""


def _render_agents(kept: Kept) -> str:
    if kept.run is None:
        return ""
    about = f"**Recorded agents on one card.** {kept.run.where} [More of it](gpu.md#measured)."
    return "\n".join([about, "", *_picture(*_SESSIONS, kept), *render_few(kept.run)])


def _render_table(table: Mapping[str, Any]) -> str:
    about = f"**{table['title']}.** {_where(table)}"
    return "\n".join([about, "", *_render_rows(table)]).rstrip()


def _where(table: Mapping[str, Any]) -> str:
    command = f" `{table['command']}`." if table.get("command") else ""
    version = f"commit {table['commit']}" if table.get("commit") else f"version {table['version']}"
    return f"{table['about']} ({table['machine']}; {version}, {table['date']}.{command})"


def _render_rows(table: Mapping[str, Any]) -> list[str]:
    head = [_line(*table["head"]), f"{'|---' * len(table['head'])}|"] if table.get("head") else []
    return [*head, *(_line(*row) for row in table.get("rows", ()))]


def _line(*cells: str) -> str:
    """A pipe would end the cell, and what stands in a failure's words is not ours."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


if __name__ == "__main__":
    write_page(*map(Path, sys.argv[1:]))
