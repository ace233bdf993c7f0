"""One thing, one figure: what README and several pages say of the same measurement, limit or name is the same."""

import json
import re
from pathlib import Path

import pytest

from hotloop.core.extras import EXTRA_OF
from hotloop.router.kinds import KINDS
from hotloop.size.shapes import SHAPES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
WORDS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen")


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def numbers(text: str) -> list[str]:
    return [found.replace(",", "") for found in NUMBER.findall(text.replace("**", ""))]


def cells(page: str, *begin: str) -> list[str]:
    """Of the first row whose cells begin so, those that follow."""
    for line in text_of(page).splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and tuple(row[: len(begin)]) == begin:
            return row[len(begin) :]
    raise AssertionError(f"{page} has no row {begin}")


def rounded_alike(quoted: str, measured: str) -> bool:
    digits = len(quoted.partition(".")[2])
    return f"{float(measured):.{digits}f}" == quoted


def agents_beside_vllm(side: int) -> dict[tuple[str, str], list[str]]:
    """The rows of README's table, as docs/gpu.md has them."""
    coding = cells("docs/gpu.md", "16 coding agents as below: tokens/s per user; mean session; last done")[side]
    speed, *sessions = numbers(coding)
    column = cells("docs/gpu.md", "customer-service agents at once", "").index("192")
    many = cells("docs/gpu.md", *(("mean session", "hotloop"), ("", "vLLM"))[side])[column]
    prompts = cells("docs/gpu.md", "three prompts of 8,000 at once, mean TTFT")[side]
    return {
        ("16 coding agents", "tokens/s per user"): [speed],
        ("", "mean session; the last one"): sessions,
        ("192 customer-service agents", "mean session"): numbers(many),
        ("three prompts of 8,000 tokens", "mean time to first token"): numbers(prompts)[:1],
    }


@pytest.mark.parametrize("side", [0, 1], ids=["hotloop", "vllm"])
def test_the_table_of_the_readme_is_that_of_the_page_on_gpus(side: int) -> None:
    for row, measured in agents_beside_vllm(side).items():
        quoted = numbers(cells("README.md", *row)[side])
        assert len(quoted) == len(measured)
        assert all(map(rounded_alike, quoted, measured)), (row, quoted, measured)


def test_what_is_lost_is_told_with_the_same_figures() -> None:
    page = text_of("docs/when-not.md")
    [equal] = [line for line in re.split(r"\n- ", page) if line.startswith("**Equal requests")]
    [last] = [line for line in re.split(r"\n- ", page) if line.startswith("**Last done")]
    ours, theirs = map(agents_beside_vllm, (0, 1))
    at_once = cells("docs/gpu.md", "64 × (1,024 + 128), output tokens/s")
    prompts = ("three prompts of 8,000 tokens", "mean time to first token")
    sessions = ("", "mean session; the last one")
    told = {*ours[prompts], *theirs[prompts], *(numbers(cell)[0] for cell in at_once)}
    assert told <= set(numbers(equal))
    assert {ours[sessions][1], theirs[sessions][1]} <= set(numbers(last))


def test_vllm_alone_on_a_card_is_the_run_that_is_kept() -> None:
    lines = text_of("docs/figures/vllm-gpu.jsonl").splitlines()
    kept = {each["what"]: each for each in map(json.loads, filter(lambda line: line.startswith("{"), lines))}
    rows = {
        "decode alone at 2,048 tokens, tokens/s": kept["decode_alone_2048"]["tok_s"],
        "decode alone at 32,768 tokens, tokens/s": kept["decode_alone_32768"]["tok_s"],
        "prefill of 8,192 tokens, tokens/s": kept["prefill_8192"]["tok_s"],
        "64 × (1,024 in + 128 out) at once, output tokens/s": kept["batch_64x1024+128"]["out_tok_s"],
        "256 × the same": kept["batch_256x1024+128"]["out_tok_s"],
        "64 agents in lockstep, 4,000 tokens in common, 8 turns of 380 in and 80 out, output tokens/s": kept[
            "agents_64x8_lockstep"
        ]["out_tok_s"],
    }
    for row, measured in rows.items():
        assert float(numbers(cells("docs/gpu.md", row)[1])[0]) == measured, row


def test_estimates_stand_beside_what_the_page_on_gpus_measured() -> None:
    rows = {
        "decode alone at 2,048 tokens, tokens/s": "decode alone at 2,048 tokens, tokens/s",
        "decode alone at 32,768 tokens, tokens/s": "decode alone at 32,768 tokens, tokens/s",
        "prefill of 8,192 tokens, tokens/s": "prefill of 8,192 tokens, tokens/s",
        "64 × (1,024 in + 128 out), output tokens/s": "64 × (1,024 in + 128 out) at once, output tokens/s",
        "256 × (1,024 in + 128 out), output tokens/s": "256 × the same",
    }
    for estimated, measured in rows.items():
        [beside] = numbers(cells("docs/sizing.md", estimated)[1])
        assert beside == numbers(cells("docs/gpu.md", measured)[0])[0], estimated


def test_long_prompts_in_fp8_have_one_figure() -> None:
    page = text_of("docs/gpu.md")
    offered = re.findall(r"([\d.]+) times the speed of long prompts", page)
    measured = re.findall(r"8,192 tokens were prefilled ([\d.]+) times as fast", page)
    assert offered == measured
    assert len(offered) == 1


def test_a_draft_model_has_one_figure() -> None:
    row = cells("docs/benchmarks.md", "draft model", "2 to 3 times on autoregressive generation, same output")
    [measured] = re.findall(r"(?<!: )prose \S+ tokens/s → \S+ tokens/s: ([\d.]+)×", row[2])
    assert re.findall(r"did not\s+pay: ([\d.]+) times the speed", text_of("docs/models.md")) == [measured]


def test_claude_code_is_given_the_same_variables_on_both_pages() -> None:
    given = [
        set(re.findall(r"^export (\w+)=", text_of(page).partition("## Claude Code")[2].partition("\n## ")[0], re.M))
        for page in ("docs/clients.md", "docs/tutorials.md")
    ]
    assert given[0] == given[1]
    assert {"ANTHROPIC_BASE_URL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"} <= given[0]


def test_the_readme_counts_what_there_is() -> None:
    [kinds] = re.findall(r"(\w+) kinds of engines and hosted APIs", text_of("README.md"))
    assert kinds.lower() == WORDS[len(KINDS) - 10]


def test_sizes_of_installs_are_the_same_everywhere() -> None:
    [light] = re.findall(r"pip install hotloop +#.*?(\d+) MB", text_of("README.md"))
    assert re.findall(r"`pip install hotloop` .*\| (\d+) MB", text_of("docs/install.md")) == [light]


def test_lists_of_shapes_and_extras_are_whole() -> None:
    [shapes] = re.findall(r"well-known shape by name\n\((.*?)\), a model that", text_of("docs/sizing.md"), re.DOTALL)
    assert set(re.findall(r"`([^`]+)`", shapes)) == set(SHAPES)
    extras = text_of("docs/install.md").partition("## Extras")[2].partition("\n## ")[0]
    assert set(EXTRA_OF.values()) <= set(re.findall(r"^\| `(\S+)` ", extras, re.M))


@pytest.mark.parametrize("gone", ["--read-speed", "--write-speed", "hotloop fleet", "fleet.md", "dense models only"])
def test_names_and_limits_that_are_gone_are_on_no_page(gone: str) -> None:
    assert not [page.name for page in (ROOT / "README.md", *DOCS.glob("*.md")) if gone in page.read_text("utf-8")]
