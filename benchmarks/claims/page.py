"""docs/benchmarks.md from the results that are kept beside it: `python -m benchmarks.claims.page`. Nothing is typed.

docs/figures/claims-cpu.json    what `python -m benchmarks.claims --keep` measured
docs/figures/claims-gpu.json    what `python -m benchmarks.claims.gpu --json` of commit 981b7662 measured on a card
docs/figures/vllm-gpu.jsonl     another engine on such a card, a JSON object a line
docs/figures/earlier.json       tables of earlier versions, with the commands that took them
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.claims.plot import draw_claims, draw_growth
from benchmarks.claims.published import CLAIMS, FLAT, SERVING, TOKENS, Claim, Device
from benchmarks.claims.result import Figure, Result, read_results
from hotloop.core.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN = "<!-- figures: begin; written by `make benchmarks` from docs/figures -->"
END = "<!-- figures: end -->"

_INTRODUCTION = """## Published claims, reproduced
```bash
make benchmarks
```
measures all of this on a CPU, keeps the figures in `docs/figures` and writes what follows from them; on a card it was
`python -m benchmarks.claims.gpu` of commit 981b7662. `python -m benchmarks.claims.page` writes the page anew.
Claims are as they were published, on other machines and with other models. Figures are medians, baseline first; *×* is
how many times better, with the least and the most of the repeats in brackets. A claim holds if its lower bound is
reached in the median. On a CPU the model is the default one, SmolLM2-135M, where no other is named; on a card it is one
of Llama-3.1-8B shapes with random weights. Tiers, a draft model and everything together need two models:
`make benchmarks CLAIMS='--small A --large B'`; `--data` and `--questions` take runs and questions of your own."""
_HEAD = "| claim | published | baseline | on a CPU | on a GPU | does it hold? |\n|---|---|---|---|---|---|"
_DEVICES: Mapping[Device, str] = {"cpu": "CPU", "gpu": "GPU"}
_A100 = "naive 15–20, TGI 35–45, vLLM 55–65, SGLang 60–70, TensorRT-LLM 70–90 tokens/s"
_PICTURES = {
    "claims.svg": "How many times better, published and measured",
    "claims-loop.svg": "Prompt tokens prefilled up to each step",
    "claims-steps.svg": "Milliseconds of a step of one run, at steps 1 to 5, 10, 18 and 26; straight lines between",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """All results there are, by claim."""

    cpu: Mapping[str, Result]
    gpu: Mapping[str, Result]
    vllm: Mapping[str, Mapping[str, Any]]
    earlier: Sequence[Mapping[str, Any]]

    def of(self, device: Device) -> Mapping[str, Result]:
        return self.cpu if device == "cpu" else self.gpu


def read_kept(folder: Path) -> Kept:
    cpu, gpu = (
        {result.claim: result for result in read_results(path)} if (path := folder / name).exists() else {}
        for name in ("claims-cpu.json", "claims-gpu.json")
    )
    vllm = {each["what"]: each for each in _lines(folder / "vllm-gpu.jsonl")}
    earlier = folder / "earlier.json"
    return Kept(cpu, gpu, vllm, json.loads(earlier.read_text("utf-8")) if earlier.exists() else [])


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        if line.startswith("{"):
            yield json.loads(line)


def write_page(page: Path = PAGE) -> None:
    """Rewrite the section between the marks, and the pictures beside the page."""
    kept = read_kept(page.with_name("figures"))
    try:
        page.write_text(replace_section(page.read_text("utf-8"), render_section(kept)), encoding="utf-8")
        for name, picture in draw_pictures(kept).items():
            page.with_name(name).write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {page}: {error.strerror}") from None


def replace_section(text: str, section: str) -> str:
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"the page must have {BEGIN} and {END} once each")
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: section, text, count=1, flags=re.DOTALL)


def draw_pictures(kept: Kept) -> dict[str, str]:
    drawn = {"claims.svg": draw_claims(kept.cpu, kept.gpu)}
    for name, claim in (("claims-loop.svg", TOKENS), ("claims-steps.svg", FLAT)):
        if (result := kept.cpu.get(claim)) and result.growth:
            drawn[name] = draw_growth(_PICTURES[name], result.growth)
    return drawn


def render_section(kept: Kept) -> str:
    names = [name for name in CLAIMS if name != SERVING]
    pictures = [f"![{_PICTURES[name]}]({name})" for name in draw_pictures(kept)]
    parts = [
        "\n".join([_HEAD, *(_row(name, CLAIMS[name], kept) for name in names)]),
        *pictures,
        _render_serving(kept),
        _render_work(kept, [*names, SERVING]),
        *map(_render_earlier, kept.earlier),
    ]
    return f"{BEGIN}\n{_INTRODUCTION}\n\n" + "\n\n".join(filter(None, parts)) + f"\n{END}"


def _row(name: str, claim: Claim, kept: Kept) -> str:
    cells = [_measured(kept.of(device).get(name)) for device in _DEVICES]
    if not claim.on_gpu:
        cells[1] = claim.off_gpu
    verdicts = [
        f"{shown}: {_verdict(claim, device, result)}"
        for device, shown in _DEVICES.items()
        if (result := kept.of(device).get(name)) and result.figures
    ]
    return _line(name, claim.published, claim.baseline, *cells, "; ".join(verdicts))


def _measured(result: Result | None) -> str:
    if result is None:
        return "not measured"
    return "; ".join(figure.shown() for figure in result.figures) or f"not measured: {result.missing}"


def _verdict(claim: Claim, device: Device, result: Result) -> str:
    if claim.holds(result):
        return "holds"
    missed = [str(need) for need in claim.needs if not need.is_met(result)]
    reason = claim.reasons.get(device, "")
    return f"does not hold ({', '.join(missed)})" + (f": {reason}" if reason else "")


def _render_serving(kept: Kept) -> str:
    """Columns are the figures of the result, rows the engines."""
    result = kept.gpu.get(SERVING)
    if result is None:
        return ""
    vllm = kept.vllm
    version = vllm["vllm"]["version"] if "vllm" in vllm else ""
    lines = [
        _line("", *(figure.name for figure in result.figures)),
        f"|---{'|---' * len(result.figures)}|",
        _line(
            "transformers", *(figure.show(figure.baseline) if figure.baseline else _ABSENT for figure in result.figures)
        ),
        _line(f"vLLM {version}".strip(), *(_cell(vllm, *where) for where in _VLLM)),
        _line("hotloop", *(figure.show(figure.ours) for figure in result.figures)),
    ]
    about = f"**Serving, Llama-3.1-8B shapes** with random weights: {result.what}. Published for an A100: {_A100}."
    note = (
        "vLLM was run on another day, on a card of the same kind; of a batch it is the median's first token. "
        "[More of it](gpu.md#measured)."
    )
    return "\n".join([about, note, "", *lines])


_ABSENT = "not taken"
_VLLM = (
    ("decode_alone_2048", "tok_s", "tokens/s", 1.0),
    ("prefill_2048", "ms", "s", 0.001),
    ("batch_64x1024+128", "out_tok_s", "tokens/s", 1.0),
    ("first_64x1024", "s", "s", 1.0),
)


def _cell(vllm: Mapping[str, Mapping[str, Any]], what: str, key: str, unit: Any, scale: float) -> str:
    if what not in vllm:
        return _ABSENT
    values = [scale * float(vllm[what][key])]
    return Figure("", unit, values).show(values)


def _render_work(kept: Kept, names: Sequence[str]) -> str:
    lines = ["| claim | on | what was measured | taken |", "|---|---|---|---|"]
    for name in names:
        for device, shown in _DEVICES.items():
            result = kept.of(device).get(name)
            if result and result.figures and (taken := result.taken):
                work = " ".join(filter(None, (f"{result.what}.", result.note)))
                lines.append(
                    _line(name, shown, work, f"{taken.machine}; {taken.version}, {taken.date}; `{taken.command}`")
                )
    return "\n".join(lines) if len(lines) > 2 else ""


def _render_earlier(table: Mapping[str, Any]) -> str:
    head = [_line(*table["head"]), f"{'|---' * len(table['head'])}|"] if table.get("head") else []
    rows = [_line(*row) for row in table.get("rows", ())]
    taken = f"{table['machine']}; version {table['version']}, {table['date']}"
    command = f" `{table['command']}`." if table.get("command") else ""
    about = f"**{table['title']}.** {table['about']} ({taken}.{command})"
    return "\n".join([about, "", *head, *rows]).rstrip()


def _line(*cells: str) -> str:
    """A pipe would end the cell, and what stands in a failure's words is not ours."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


if __name__ == "__main__":
    write_page(*map(Path, sys.argv[1:]))
