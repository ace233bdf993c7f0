"""A run as it is drawn."""

import pytest
from msgspec.structs import replace
from tests.ui.made_up import HOSTILE, MS, START_NS, Run, hostile_run, long_run

from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.ui.scene import MAX_TEXT, draw_run

FORTY = START_NS + 40 * MS


def span(name: str, span_id: str, parent_id: str | None, start_ms: int, end_ms: int, **attributes: object) -> Span:
    return Span(
        trace_id="1" * 32,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        service="agent",
        start_ns=START_NS + start_ms * MS,
        end_ns=START_NS + end_ms * MS,
        attributes=attributes,
    )


@pytest.mark.parametrize("spans", [long_run(20), hostile_run(), Run(3).plain_request()], ids=("long", "odd", "plain"))
def test_everything_is_within_the_run_and_its_turn(spans: list[Span]):
    run = draw_run(spans)
    for turn in run["turns"]:
        assert 0 <= turn["start"] <= turn["end"] <= run["wall_ms"] + 0.001
        assert turn["rows"]
        for row in turn["rows"]:
            assert turn["start"] <= row["start"] <= row["end"] <= turn["end"] + 0.001


@pytest.mark.parametrize("seed", range(5))
def test_the_pieces_of_a_question_leave_no_gap(seed: int):
    run = draw_run(Run(seed, "triage").agent_run(5))
    for row in (row for turn in run["turns"] for row in turn["rows"] if row["kind"] == "chat"):
        at = row["start"]
        for _, start, end in row["pieces"]:
            assert start == pytest.approx(at, abs=0.002)
            at = end
        assert at == pytest.approx(row["end"], abs=0.002)


def test_the_order_in_which_spans_come_does_not_matter():
    spans = long_run(5)
    assert draw_run(spans) == draw_run(spans[::-1])


def test_a_tool_that_was_speculative_has_one_row_and_one_nobody_asked_for_its_own():
    run = draw_run(
        [
            span(names.RUN, "a" * 16, None, 0, 100, agent="one", end="done"),
            span(names.TURN, "b" * 16, "a" * 16, 0, 100, turn=1),
            span(names.CHAT, "c" * 16, "b" * 16, 0, 50, first_token_ns=START_NS + 20 * MS, num_prompt=10, num_cached=4),
            span(names.TOOL, "d" * 16, "b" * 16, 10, 90, tool="find", dispatched_ns=FORTY, was_speculative=True),
            span(names.SPECULATIVE, "e" * 16, "b" * 16, 10, 90, tool="find", was_used=True),
            span(names.SPECULATIVE, "f" * 16, "b" * 16, 10, 30, tool="look", was_used=False),
        ]
    )
    [turn] = run["turns"]
    assert [(row["kind"], row["label"]) for row in turn["rows"]] == [
        ("chat", "model"),
        ("tool", "find"),
        ("speculative", "look"),
    ]
    assert turn["rows"][0]["pieces"] == [("hosted_prefill", 0, 20), ("hosted_decode", 20, 50)]
    assert turn["rows"][1]["dispatched"] == 40
    assert turn["tokens"]["new"] == 6


def test_an_agent_within_an_agent_has_turns_of_its_own():
    run = draw_run(
        [
            span(names.RUN, "a" * 16, None, 0, 100, agent="outer"),
            span(names.TURN, "b" * 16, "a" * 16, 0, 100, turn=1),
            span(names.CHAT, "c" * 16, "b" * 16, 0, 20),
            span(names.TOOL, "d" * 16, "b" * 16, 20, 90, tool="ask"),
            span(names.RUN, "e" * 16, "d" * 16, 22, 88, agent="inner"),
            span(names.TURN, "f" * 16, "e" * 16, 22, 88, turn=1),
            span(names.CHAT, "9" * 16, "f" * 16, 23, 80),
        ]
    )
    assert [(turn["agent"], turn["depth"]) for turn in run["turns"]] == [("outer", 0), ("inner", 1)]
    assert [row["label"] for row in run["turns"][0]["rows"]] == ["model", "ask"]
    assert {step["place"] for step in run["path"] if 30 < step["start"] < 70 or step["name"] == "chat"} == {0, 1}


def test_words_are_told_with_the_cause_they_belong_to():
    causes = [cause for turn in draw_run(hostile_run())["turns"] for cause in turn["causes"]]
    told = [cause for cause in causes if "current" in cause]
    assert told
    assert {cause["previous"] for cause in told} == {"Monday 10:14"}
    assert all("current" not in cause for turn in draw_run(long_run(30))["turns"] for cause in turn["causes"])


def test_long_texts_are_cut():
    spans = [
        replace(each, attributes={**each.attributes, names.CONTENT_RESULT: HOSTILE[3]})
        for each in Run(2, "triage").agent_run(2)
    ]
    results = [row["result"] for turn in draw_run(spans)["turns"] for row in turn["rows"] if row["kind"] == "tool"]
    assert results
    assert {len(result) for result in results} == {MAX_TEXT + 2}


def test_what_is_not_recorded_is_not_there():
    run = draw_run(Run(2, "triage").agent_run(2))
    assert run["prompt"] is None
    assert all(turn["answer"] is None for turn in run["turns"])


class TestUnfinished:
    def test_a_turn_that_is_not_over_is_shown_as_far_as_it_has_come(self):
        begun, *turns, _ = Run(4, "triage").growing(3)
        last = [each for each in turns[2] if each.name != names.TURN]
        run = draw_run([*begun, *turns[0], *turns[1], *last])
        assert [turn["turn"] for turn in run["turns"]] == [1, 2, 3]
        assert [row["kind"] for row in run["turns"][2]["rows"]] == ["chat"]
        whole = draw_run([*begun, *turns[0], *turns[1], *turns[2]])
        assert [turn["id"] for turn in run["turns"]] == [turn["id"] for turn in whole["turns"]]
        assert run["tokens"] == whole["tokens"]

    def test_a_run_that_has_only_begun_has_no_turns(self):
        begun, *_ = Run(4, "triage").growing(3)
        run = draw_run(begun)
        assert run["turns"] == []
        assert run["agent"] == "triage"

    def test_of_an_agent_within_an_agent_it_is_the_inner_ones(self):
        run = draw_run(
            [
                span(names.RUN, "a" * 16, None, 0, 0, agent="outer"),
                span(names.CHAT, "c" * 16, "b" * 16, 0, 20),
                span(names.RUN, "e" * 16, "d" * 16, 22, 22, agent="inner"),
                span(names.CHAT, "9" * 16, "f" * 16, 23, 80),
            ]
        )
        assert [(turn["agent"], turn["turn"]) for turn in run["turns"]] == [("outer", 1), ("inner", 1)]

    def test_what_is_missing_from_a_run_that_has_ended_is_not_made_up(self):
        run = draw_run(
            [
                span(names.RUN, "a" * 16, None, 0, 100, agent="one", end="done"),
                span(names.TOOL, "d" * 16, "b" * 16, 20, 90, tool="ask"),
            ]
        )
        assert run["turns"] == []


@pytest.mark.parametrize("causes", [5, "x", [1, "x", None], [{"reason": 1}], {"reason": "x"}])
@pytest.mark.parametrize("words", [5, "x", [5], ["x"]])
def test_causes_that_are_none_are_passed_over(causes: object, words: object):
    told = {names.CAUSES: causes, names.CONTENT_WORDS: words}
    [turn] = draw_run([span(names.REQUEST, "1", None, 0, 10, **told)])["turns"]
    assert turn["causes"] == []
