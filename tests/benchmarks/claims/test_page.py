"""The page is what its command writes from the figures that are kept."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.claims.page import (
    BEGIN,
    END,
    PAGE,
    Kept,
    draw_pictures,
    read_kept,
    render_section,
    replace_section,
    write_page,
)
from benchmarks.claims.plot import draw_claims, draw_growth
from benchmarks.claims.published import CLAIMS, CONTINUOUS, SERVING, TIERS, TOKENS
from benchmarks.claims.result import Figure, Result, Taken

from hotloop.core.errors import ConfigError

TAKEN = Taken("a machine", "python -m benchmarks.claims", "2026-11-16", "0.1.0")
CPU = Result(
    claim=CONTINUOUS, what="some requests", figures=[Figure("throughput", "tokens/s", [40.0], [10.0])], taken=TAKEN
)
GPU = Result(claim=CONTINUOUS, what="others", figures=[Figure("throughput", "tokens/s", [20.0], [10.0])], taken=TAKEN)
GROWING = Result(
    claim=TOKENS,
    figures=[Figure("prefilled", "tokens", [3], [6])],
    growth={"without reuse": [1, 3, 6], "with it": [1, 2, 3]},
)


def test_the_page_is_what_its_command_writes():
    kept = read_kept(PAGE.with_name("figures"))
    text = PAGE.read_text("utf-8")
    assert text == replace_section(text, render_section(kept)), "python -m benchmarks.claims.page"
    for name, picture in draw_pictures(kept).items():
        assert PAGE.with_name(name).read_text("utf-8") == picture, f"python -m benchmarks.claims.page writes {name}"


def test_every_kept_result_is_of_a_claim_and_says_where_it_was_taken():
    kept = read_kept(PAGE.with_name("figures"))
    for name, result in (*kept.cpu.items(), *kept.gpu.items()):
        assert name in CLAIMS
        assert result.taken
        assert "/" not in result.taken.command, name


def test_a_claim_is_a_row_with_both_machines_and_whether_it_holds():
    section = render_section(Kept({CONTINUOUS: CPU}, {CONTINUOUS: GPU}, {}, []))
    [row] = [line for line in section.splitlines() if line.startswith(f"| {CONTINUOUS} | 3 to 5")]
    assert "10.0 tokens/s → 40.0 tokens/s: 4.00× | throughput 10.0 tokens/s → 20.0 tokens/s: 2.00×" in row
    assert "CPU: holds; GPU: does not hold (throughput 3× wanted)" in row
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) >= len(CLAIMS) - 1
    assert "| some requests. | a machine; 0.1.0, 2026-11-16; `python -m benchmarks.claims` |" in section


def test_what_was_not_measured_says_so_and_no_words_break_the_table():
    missing = Result(claim=TIERS, missing="failed: a | b <script>")
    section = render_section(Kept({TIERS: missing}, {}, {}, []))
    assert "not measured: failed: a \\| b &lt;script>" in section


def test_engines_side_by_side():
    names = ("one, tokens/s", "one, first token", "batch, tokens/s", "batch, first token")
    figures = [Figure(name, "tokens/s" if "tokens" in name else "s", [2.0], [1.0]) for name in names]
    vllm = {
        "vllm": {"version": "0.24.0"},
        "decode_alone_2048": {"tok_s": 199.8},
        "prefill_2048": {"ms": 51.2},
        "batch_64x1024+128": {"out_tok_s": 3307},
    }
    section = render_section(
        Kept({}, {SERVING: Result(claim=SERVING, what="w", figures=figures, taken=TAKEN)}, vllm, [])
    )
    assert "| transformers | 1.0 tokens/s | 1.00 s | 1.0 tokens/s | 1.00 s |" in section
    assert "| vLLM 0.24.0 | 199.8 tokens/s | 51 ms | 3,307 tokens/s | not taken |" in section
    assert "| hotloop | 2.0 tokens/s | 2.00 s | 2.0 tokens/s | 2.00 s |" in section


def test_the_section_is_written_anew_and_nothing_else(tmp_path: Path):
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Title\n\n{BEGIN}\nstale \\1\n{END}\n\nMore.\n")
    write_page(page)
    text = page.read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n## ")
    assert text.endswith(f"{END}\n\nMore.\n")
    assert "stale" not in text
    ElementTree.parse(tmp_path / "claims.svg")


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{BEGIN}{END}{BEGIN}{END}"])
def test_half_a_section_is_not_guessed_at(text: str):
    with pytest.raises(ConfigError, match="once each"):
        replace_section(text, "")


def test_a_picture_shows_what_is_published_and_what_was_measured():
    texts = _texts(draw_claims({CONTINUOUS: CPU}, {CONTINUOUS: GPU}))
    assert {CONTINUOUS, "3.00 to 5.00×", "4.00×", "2.00×"} <= texts
    assert TIERS not in texts
    _texts(draw_claims({}, {}))


def test_what_grows_is_drawn_step_by_step():
    tree = ElementTree.fromstring(draw_growth("three steps", GROWING.growth))
    lines = [line.get("points", "").split() for line in tree.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in lines] == [3, 3]
    without, with_ = (float(points[-1].split(",")[1]) for points in lines)
    assert without < with_  # more is higher up


def _texts(picture: str) -> set[str | None]:
    return {element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")}
