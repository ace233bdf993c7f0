"""The page is what its command writes from the figures that are kept."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.claims.page import (
    BEGIN,
    END,
    PAGE,
    README,
    Kept,
    draw_pictures,
    read_kept,
    render_readme,
    render_section,
    replace_section,
    write_page,
)
from benchmarks.claims.published import CLAIMS, CONTINUOUS, SERVING, TIERS, TOKENS
from benchmarks.claims.result import Figure, Result, Taken

from hotloop.core.errors import ConfigError

TAKEN = Taken("a machine", "python -m benchmarks.claims", "2026-11-16", "0.1.0", "4f4567ae")
CPU = Result(
    claim=CONTINUOUS,
    what="some requests",
    figures=[Figure("throughput", "tokens/s", [40.0, 39.0, 42.0], [10.0, 10.0, 10.0])],
    taken=TAKEN,
)
GPU = Result(
    claim=CONTINUOUS,
    what="others",
    figures=[Figure("throughput", "tokens/s", [20.0, 20.0, 19.0], [10.0, 10.0, 10.0])],
    taken=TAKEN,
)
GROWING = Result(
    claim=TOKENS,
    figures=[Figure("prefilled", "tokens", [3], [6])],
    growth={"without reuse": [1, 3, 6], "a prefix cache alone": [1, 2, 3], "all of hotloop": [1, 2, 2]},
    taken=TAKEN,
)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def test_the_page_is_what_its_command_writes():
    kept = read_kept(PAGE.with_name("figures"))
    text = PAGE.read_text("utf-8")
    assert text == replace_section(text, render_section(kept)), "python -m benchmarks.claims.page"
    readme = README.read_text("utf-8")
    assert readme == replace_section(readme, render_readme(kept)), "python -m benchmarks.claims.page"
    for name, picture in draw_pictures(kept).items():
        assert PAGE.with_name(name).read_text("utf-8") == picture, f"python -m benchmarks.claims.page writes {name}"


def test_every_kept_result_is_of_a_claim_and_says_where_it_was_taken():
    kept = read_kept(PAGE.with_name("figures"))
    for name, result in (*kept.cpu.items(), *kept.gpu.items()):
        assert name in CLAIMS
        assert result.taken
        assert "/" not in result.taken.command, name


def test_the_readme_quotes_figures_that_are_kept():
    text = README.read_text("utf-8").partition("## Measured")[2].partition("\n## ")[0]
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    kept = "".join(path.read_text("utf-8") for path in PAGE.with_name("figures").iterdir())
    quoted = {number.strip(",") for number in NUMBER.findall(text)}
    assert quoted
    assert quoted <= {number.strip(",") for number in NUMBER.findall(kept)}, (
        "what the README says of speed is kept in docs/figures"
    )


def test_a_claim_is_a_row_with_both_machines_and_whether_it_holds():
    section = render_section(Kept({CONTINUOUS: CPU}, {CONTINUOUS: GPU}, {}, []))
    [row] = [line for line in section.splitlines() if line.startswith(f"| {CONTINUOUS} | 3 to 5")]
    assert "10.0 tokens/s → 40.0 tokens/s: 4.00× (3.90 to 4.20) | throughput 10.0 tokens/s → 20.0 tokens/s" in row
    assert "CPU: holds; GPU: does not hold (throughput 3× wanted)" in row
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) >= len(CLAIMS)
    where = "a machine; 2026-11-16, 4f4567ae; `python -m benchmarks.claims`"
    assert f"| {CONTINUOUS} | CPU | some requests. | {where} | 3 | 8% |" in section
    assert "1 taken on a CPU: 1 hold; 1 taken on a GPU: 1 do not hold." in section


def test_no_verdict_from_too_few_repeats_or_from_repeats_too_far_apart():
    few = replace(CPU, figures=[Figure("throughput", "tokens/s", [40.0, 40.0], [10.0, 10.0])])
    apart = replace(CPU, figures=[Figure("throughput", "tokens/s", [40.0, 34.0, 47.0], [10.0, 10.0, 10.0])])
    other = replace(CPU, figures=[Figure("waiting", "s", [1.0, 1.0, 1.0])])
    for result, doubt in (
        (few, "2 repeats"),
        (apart, "33% between repeats"),
        (other, "taken against another baseline, to be taken again"),
    ):
        assert not CLAIMS[CONTINUOUS].holds(result)
        section = render_section(Kept({CONTINUOUS: result}, {}, {}, []))
        assert f"CPU: not measured well enough ({doubt})" in section


def test_what_was_not_measured_says_so_and_no_words_break_the_table():
    missing = Result(claim=TIERS, missing="failed: a | b <script>")
    section = render_section(Kept({TIERS: missing}, {}, {}, []))
    assert "not measured: failed: a \\| b &lt;script>" in section


def test_engines_side_by_side():
    names = ("one, tokens/s", "one, first token", "batch, tokens/s", "batch, first token")
    figures = [Figure(name, "tokens/s" if "tokens" in name else "s", [2.0], [1.0]) for name in names[:3]]
    figures.append(Figure(names[3], "s", [2.0], [1.0, 3.0]))
    vllm = {
        "vllm": {"version": "0.24.0"},
        "decode_alone_2048": {"tok_s": 199.8},
        "prefill_2048": {"ms": 51.2},
        "batch_64x1024+128": {"out_tok_s": 3307},
    }
    section = render_section(
        Kept({}, {SERVING: Result(claim=SERVING, what="w", figures=figures, taken=TAKEN)}, vllm, [])
    )
    apart = "2.00 s (1.00 s to 3.00 s): not measured well enough"
    assert f"| transformers | 1.0 tokens/s | 1.00 s | 1.0 tokens/s | {apart} |" in section
    assert "| vLLM 0.24.0 | 199.8 tokens/s | 51 ms | 3,307 tokens/s | not taken |" in section
    assert "| hotloop | 2.0 tokens/s | 2.00 s | 2.0 tokens/s | 2.00 s |" in section
    assert "SGLang and TensorRT-LLM were not run" in section


def test_the_section_is_written_anew_and_nothing_else(tmp_path: Path):
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Title\n\n{BEGIN}\nstale \\1\n{END}\n\nMore.\n")
    write_page(page)
    text = page.read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n## ")
    assert text.endswith(f"{END}\n\nMore.\n")
    assert "stale" not in text


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{BEGIN}{END}{BEGIN}{END}"])
def test_half_a_section_is_not_guessed_at(text: str):
    with pytest.raises(ConfigError, match="once each"):
        replace_section(text, "")


def test_the_readme_has_the_newest_run_of_recorded_agents():
    tables = [
        {"title": "T", "about": "A.", "machine": "M", "commit": "c0ffee", "date": date, "head": ["x"], "rows": [[date]]}
        for date in ("2026-11-18", "2026-11-19")
    ]
    section = render_readme(Kept({}, {}, {}, [], tables))
    assert section == f"{BEGIN}\nA. (M; commit c0ffee, 2026-11-19.)\n\n| x |\n|---|\n| 2026-11-19 |\n{END}"


def test_what_grows_is_drawn_step_by_step_with_axes_machine_and_date():
    drawn = draw_pictures(Kept({TOKENS: GROWING}, {}, {}, []))["claims-loop.svg"]
    tree = ElementTree.fromstring(drawn)
    lines = [line.get("points", "").split() for line in tree.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in lines] == [3, 3, 3]
    without, cached, ours = (float(points[-1].split(",")[1]) for points in lines)
    assert without < cached < ours  # more is higher up
    texts = {element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {*GROWING.growth, "step", "tokens", "1", "2", "3", "0", "6", "a machine, 2026-11-16"} <= texts
