"""A run as rows over time."""

import pytest
from tests.cli.trace.spans import Trace, clerk, plain

from hotloop.cli.output import Bar, draw_bar
from hotloop.cli.trace.waterfall import BEGINS, CRITICAL, DECODE, PREFILL, draw, duration
from hotloop.trace import names
from hotloop.trace.ledger import build_ledger
from hotloop.trace.span import Span
from hotloop.trace.tree import build_tree


def drawn(spans: list[Span], width: int = 74) -> list[str]:
    """At 74 cells, a bar has 40."""
    return [line.plain for line in draw(build_tree(spans), build_ledger(spans), width)]


def test_every_span_has_its_row_and_every_row_its_width():
    lines = drawn(clerk())
    assert [line[:22].rstrip() for line in lines] == [
        "run clerk", " turn 1", "  model @east", "   tried west", "   tried east", "  wasted news", "  search",
        "  weather", " turn 2", "  model",
    ]  # fmt: skip
    assert {len(line) for line in lines} == {74}


def test_a_models_bar_has_its_parts_and_the_moments_tools_begin():
    lines = drawn(clerk())
    # A cell is 25 ms: sent at 0, queue from 20, prefill from 40, decode from 120 to 300; tools at 200 and 250.
    assert lines[2][23:63].rstrip() == "░▒▒▒████▼█▼█"
    # Begun at 160, asked for at 200, done at 560.
    assert lines[6][23:63].rstrip() == "      ┄┄━━━━━━━━━━━━━━"


def test_what_was_waited_for_is_marked():
    marked = [line[:22].strip() for line in drawn(clerk()) if line.endswith(CRITICAL[0])]
    assert marked == ["turn 1", "model @east", "search", "model"]


def test_requests_without_an_agent_are_turns():
    lines = drawn(plain())
    assert [line[:22].rstrip() for line in lines] == ["turn 1", "turn 2"]
    assert all("▒" in line and "█" in line for line in lines)


def test_a_hosted_model_is_drawn_by_its_first_token():
    trace = Trace("d4" * 16)
    trace.add(names.CHAT, "agent", 0, 100, first_token_ns=trace.at(50), num_prompt=9)
    assert drawn(trace.spans)[0][23:63] == "▒" * 20 + "█" * 20


def test_agents_within_agents_go_to_the_right_until_there_is_no_room():
    trace = Trace("e5" * 16)
    parent = None
    for _ in range(3000):
        parent = trace.add(names.RUN, "agent", 0, 100, parent, agent="deep")
    lines = drawn(trace.spans)
    assert len(lines) == 3000
    assert lines[-1].startswith(" " * 8 + "run deep ")


def test_whatever_took_time_takes_a_cell():
    pieces = [Bar(0, 1000, PREFILL), Bar(999, 1000, DECODE)]
    assert draw_bar(pieces, 0, 1000, 10).plain == "▒▒▒▒▒▒▒▒▒█"
    assert draw_bar([*pieces[1:], Bar(1000, 1000, BEGINS)], 1000, 1000, 3).plain == "▼  "


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 ms"), (0.00123, "1.2 ms"), (0.01, "10 ms"), (0.9994, "999 ms"), (1, "1.00 s"), (9.996, "10.0 s"),
        (99.96, "100 s"), (3600, "60 min"),
    ],
)  # fmt: skip
def test_a_duration_is_short(seconds: float, words: str):
    assert duration(seconds) == words
