"""The page is what its command writes from the figures that are kept."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.claims.agents import Run
from benchmarks.claims.page import (
    BEGIN,
    END,
    OTHERS,
    PAGE,
    README,
    Kept,
    draw_pictures,
    read_kept,
    render_gpu,
    render_readme,
    render_section,
    replace_section,
    write_page,
)
from benchmarks.claims.published import CLAIMS, CONTINUOUS, FLAT, SERVING, TIERS, TOKENS
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
    for path, render in OTHERS.items():
        other = path.read_text("utf-8")
        assert other == replace_section(other, render(kept)), "python -m benchmarks.claims.page"
    for name, picture in draw_pictures(kept).items():
        written = PAGE.with_name(f"{name}.svg").read_text("utf-8")
        assert written == picture, f"python -m benchmarks.claims.page writes {name}"


def test_every_kept_result_is_of_a_claim_and_says_where_it_was_taken():
    kept = read_kept(PAGE.with_name("figures"))
    for name, result in (*kept.cpu.items(), *kept.gpu.items()):
        assert name in CLAIMS
        assert result.taken
        assert "/" not in result.taken.command, name


def test_no_figure_of_the_readme_is_typed():
    text = README.read_text("utf-8").partition("## Measured")[2].partition("\n## ")[0]
    before, _, rest = re.sub(r"\]\([^)]*\)", "", text).partition(BEGIN)
    written, _, after = rest.partition(END)
    assert NUMBER.findall(written)
    assert not NUMBER.findall(before + after), "what the README says of speed is written from docs/figures"


def test_a_claim_is_a_row_with_both_machines_and_whether_it_holds():
    section = render_section(Kept({CONTINUOUS: CPU}, {CONTINUOUS: GPU}, []))
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
        section = render_section(Kept({CONTINUOUS: result}, {}, []))
        assert f"CPU: not measured well enough ({doubt})" in section


def test_what_is_held_against_a_bound_is_what_must_not_be_far_apart():
    """A step's growth is; by how much it is less than without reuse is not."""
    steps = [Figure(f"step {step} over step 2", "times", [1.0, 1.1, 1.2], [2.0, 4.0, 9.0]) for step in (5, 26)]
    flat = Result(claim=FLAT, what="a loop", figures=steps, taken=TAKEN)
    assert CLAIMS[FLAT].holds(flat)
    assert "| 3 | 18% |" in render_section(Kept({FLAT: flat}, {}, []))


def test_what_was_not_measured_says_so_and_no_words_break_the_table():
    missing = Result(claim=TIERS, missing="failed: a | b <script>")
    section = render_section(Kept({TIERS: missing}, {}, []))
    assert "not measured: failed: a \\| b &lt;script>" in section


def test_a_row_says_what_is_wanted_and_why_a_machine_has_no_figures():
    section = render_section(Kept({TOKENS: GROWING}, {}, []))
    [row] = [line for line in section.splitlines() if line.startswith(f"| {TOKENS} | 5 steps")]
    assert " | prefilled 2.7× | " in row
    assert " | not measured: tokens are counted, and are the same on every machine | " in row


def test_engines_side_by_side():
    names = ("one, tokens/s", "one, first token", "batch, tokens/s", "batch, first token")
    figures = [Figure(name, "tokens/s" if "tokens" in name else "s", [2.0], [1.0]) for name in names[:3]]
    figures.append(Figure(names[3], "s", [2.0], [1.0, 3.0]))
    alone = {"vLLM": {"output_tokens_s": [199.8], "ttft_s": [0.0512]}, "hotloop": {}}
    run = Run("Shapes", TAKEN, {"hotloop": "1", "vLLM": "0.24.0"}, {"alone at 2,048": alone})
    serving = Result(claim=SERVING, what="w", figures=figures, taken=TAKEN)
    section = render_section(Kept({}, {SERVING: serving}, [], run))
    apart = "2.00 s (1.00 s to 3.00 s): not measured well enough"
    assert f"| transformers | 1.0 tokens/s | 1.00 s | 1.0 tokens/s | {apart} |" in section
    assert "| vLLM 0.24.0 | 199.8 tokens/s | 51 ms | not taken | not taken |" in section
    assert "| hotloop | 2.0 tokens/s | 2.00 s | 2.0 tokens/s | 2.00 s |" in section
    assert "vLLM on a machine; commit 4f4567ae, 2026-11-16. TGI, SGLang and TensorRT-LLM were not run" in section


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


def agents_run(**changes: Any) -> Run:
    """16 agents of which one server has all, the other two, when it was stopped after 10 s."""
    whole = {"done": 16, "seconds": 8.2, "mean_session_s": 6.0, "tokens_s_user": 61.4, "ends_s": [1.0] * 15 + [8.2]}
    part = {"done": 2, "seconds": 10.0, "mean_session_s": 7.5, "tokens_s_user": 19.0, "ends_s": [3.0, 9.0]}
    rows = {"16 coding agents": {"ours": whole, "theirs": part}, "64 service agents": {"ours": {"busy": 0.994}}}
    return Run("Some shapes", TAKEN, {"ours": "1", "theirs": "0.24"}, rows | changes)


def test_recorded_agents_are_told_from_the_run_that_is_kept():
    rows = {"three prompts of 8,000": {"ours": {"mean_ttft_s": [0.4, 0.49, 0.6]}}}
    kept = Kept({}, {}, [], agents_run(**rows))
    section = render_readme(kept)
    assert "Some shapes; ours 1, theirs 0.24, one after the other" in section
    assert "(a machine; commit 4f4567ae, 2026-11-16.)" in section
    assert "|  | mean session; the last one | 6 s; 8 s | 8 s; 2 after 10 s |" in section
    assert "| three prompts of 8,000 tokens | mean time to first token | 0.49 s | not taken |" in section
    page = render_gpu(kept)
    assert "| card busy | ours | 99% |" in page
    assert "| decode alone at 2,048, tokens/s | not taken | not taken |" in page


def test_sessions_are_drawn_as_long_as_each_run_went():
    drawn = draw_pictures(Kept({}, {}, [], agents_run()))
    assert set(drawn) == {"agents-gpu", "agents-gpu-dark"}
    lines, texts = lines_and_texts(drawn["agents-gpu"])
    assert [len(points) for points in lines] == [6, 7], "every two seconds, until 8.2 and 10"
    assert {"ours, 16 agents", "theirs, 16 agents", "sessions", "s", "0", "2", "16"} <= texts
    assert "a machine; commit 4f4567ae, 2026-11-16" in texts
    assert 'srcset="docs/agents-gpu-dark.svg"' in render_readme(Kept({}, {}, [], agents_run()))


def test_nothing_is_drawn_of_a_run_that_does_not_say_when():
    old = {"ours": {"done": 16, "seconds": 8.2}, "theirs": {"done": 16, "seconds": 9.1, "ends_s": [9.1]}}
    kept = Kept({}, {}, [], agents_run(**{"16 coding agents": old}))
    assert draw_pictures(kept) == {}
    assert "<picture>" not in render_readme(kept)


def test_a_row_of_an_earlier_run_says_so_and_is_not_drawn():
    crowd = {"ours": {"done": 32, "seconds": 207.0, "ends_s": [207.0]}, "theirs": {"done": 14, "seconds": 380.0}}
    run = replace(agents_run(**{"32 coding agents": crowd}), earlier={"32 coding agents": "commit 12345678"})
    kept = Kept({}, {}, [], run)
    told = "| 32, more than fit (commit 12345678) | all done | 207 s | 14 after 380 s |"
    assert told in render_readme(kept)
    _, texts = lines_and_texts(draw_pictures(kept)["agents-gpu"])
    assert "ours, 16 agents" in texts
    assert not [text for text in texts if "32" in text]


def test_a_file_of_something_else_is_no_run(tmp_path: Path):
    (tmp_path / "agents-gpu.json").write_text("[1]")
    with pytest.raises(ConfigError, match="holds no run of"):
        read_kept(tmp_path)


def lines_and_texts(drawn: str) -> tuple[list[list[str]], set[str | None]]:
    tree = ElementTree.fromstring(drawn)
    lines = [line.get("points", "").split() for line in tree.iter("{http://www.w3.org/2000/svg}polyline")]
    return lines, {element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize("name", ["claims-loop", "claims-loop-dark"])
def test_what_grows_is_drawn_step_by_step_with_axes_machine_and_date(name: str):
    lines, texts = lines_and_texts(draw_pictures(Kept({TOKENS: GROWING}, {}, []))[name])
    assert [len(points) for points in lines] == [3, 3, 3]
    without, cached, ours = (float(points[-1].split(",")[1]) for points in lines)
    assert without < cached < ours  # more is higher up
    assert {*GROWING.growth, "step", "tokens", "1", "2", "3", "0", "6", "a machine, 2026-11-16"} <= texts
