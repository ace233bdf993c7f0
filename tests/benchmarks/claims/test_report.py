"""Rows on a page and in a picture."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.claims.plot import draw
from benchmarks.claims.published import BATCHING, CLAIMS, FORESIGHT, LOOP, TIERS
from benchmarks.claims.report import BEGIN, END, claims_json, render_section, replace_section, write_page
from benchmarks.claims.row import Row

from hotloop.core.errors import ConfigError

ROWS = [
    Row(name=LOOP, what="five steps", unit="tokens", before=4000, after=1500),
    Row(name=BATCHING, what="against static", unit="tokens/s", before=20.0, after=50.0, note="mean latency"),
    Row(name=TIERS, skipped="it needs two models"),
    Row(name=FORESIGHT, error="a | b <script>"),
]


def test_better_is_less_of_all_but_speed():
    assert [row.times for row in ROWS] == [pytest.approx(4000 / 1500), 2.5, None, None]
    assert ROWS[0].measured == "4,000 tokens → 1,500 tokens"
    assert ROWS[1].measured == "20.0 tokens/s → 50.0 tokens/s"
    assert ROWS[2].measured == "not measured: it needs two models"
    assert ROWS[3].measured.startswith("failed: ")


def test_json_has_the_claim_beside_the_figure():
    first, *_ = claims_json(ROWS)["claims"]
    assert first["claimed"] == CLAIMS[LOOP].text
    assert first["times"] == 2.667


def test_a_section_is_a_table_that_no_words_break():
    section = render_section(ROWS)
    assert section.startswith(BEGIN)
    assert section.endswith(END)
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(ROWS)
    assert "a \\| b &lt;script>" in rows[-1]


def test_the_section_is_written_anew_and_nothing_else():
    once = replace_section("# Title\n\nWords.\n", f"{BEGIN}\nold\n{END}")
    assert once == f"# Title\n\nWords.\n\n{BEGIN}\nold\n{END}\n"
    again = replace_section(f"{once}\nMore.\n", f"{BEGIN}\nnew \\1\n{END}")
    assert again == f"# Title\n\nWords.\n\n{BEGIN}\nnew \\1\n{END}\n\nMore.\n"
    assert replace_section("", f"{BEGIN}\n{END}") == f"{BEGIN}\n{END}\n"


@pytest.mark.parametrize("text", [BEGIN, END, f"{BEGIN}{END}{BEGIN}{END}"])
def test_half_a_section_is_not_guessed_at(text: str):
    with pytest.raises(ConfigError, match="once each"):
        replace_section(text, "")


def test_a_page_and_its_picture(tmp_path: Path):
    page = tmp_path / "benchmarks.md"
    write_page(page, ROWS)
    assert "(claims.svg)" in page.read_text()
    ElementTree.parse(tmp_path / "claims.svg")
    with pytest.raises(ConfigError, match="cannot write"):
        write_page(tmp_path / "nowhere" / "page.md", ROWS)


def test_a_picture_shows_what_was_measured():
    texts = [element.text for element in ElementTree.fromstring(draw(ROWS)).iter("{http://www.w3.org/2000/svg}text")]
    assert {LOOP, BATCHING, "2.67×", "2.50×", "1.00 to 23.00×"} <= set(texts)
    assert TIERS not in texts
    ElementTree.fromstring(draw([]))


def test_what_grows_is_drawn_step_by_step(tmp_path: Path):
    page = tmp_path / "benchmarks.md"
    growing = [
        Row(name=LOOP, what="two steps", unit="tokens", before=3, after=2, growth=((1, 3), (1, 2))),
        Row(name=LOOP, what="three steps", unit="tokens", before=6, after=3, growth=((1, 3, 6), (1, 2, 3))),
    ]
    write_page(page, [*growing, *ROWS])
    assert "![three steps](claims-loop.svg)" in page.read_text()
    tree = ElementTree.parse(tmp_path / "claims-loop.svg")
    lines = [line.get("points", "").split() for line in tree.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in lines] == [3, 3]
    without, with_ = (float(points[-1].split(",")[1]) for points in lines)
    assert without < with_  # more is higher up
