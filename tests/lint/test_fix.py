"""What is fixed stays fixed, says the same, and is found no more."""

import json
from copy import deepcopy

import pytest
from benchmarks.cache.breakers import BREAKERS, shuffle_keys, shuffle_tools
from tests.lint.stories import SYSTEM, TALK, TOOLS, bodies, exchanges, messages_bodies

from hotloop.core.errors import ConfigError
from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import lint
from hotloop.lint.finding import Severity
from hotloop.lint.fix import fix_file, fix_runs
from hotloop.lint.meter import Meter
from hotloop.lint.requests import parse_line
from hotloop.wire.stable import place_breakpoints, sort_tools


def fix(pairs, change=lambda body, number: body):
    made = exchanges(pairs, change)
    given = [deepcopy(each.body) for each in made]
    fixed = fix_runs(sort_into_runs(made, Meter()))
    assert [each.body for each in made] == given
    answers = [answer for _, answer in pairs]
    return [(fixed[i], answer) for i, answer in enumerate(answers)]


def worst(pairs):
    return lint(sort_into_runs(exchanges(pairs), Meter())).worst()


@pytest.mark.parametrize("change", [shuffle_tools, shuffle_keys])
def test_tools_in_any_order_are_fix(change):
    fixed = fix(bodies(), change)
    assert worst(fixed) is None
    assert len({json.dumps(body["tools"]) for body, _ in fixed}) == 1


def test_properties_keep_their_order():
    (tool,) = sort_tools({"tools": TOOLS[:1]})["tools"]
    assert [*tool["function"]["parameters"]["properties"]] == ["id", "why"]
    assert [*tool["function"]["parameters"]] == ["type", "properties", "required"]


def test_what_is_no_tool_is_left_alone():
    assert sort_tools({"tools": [1, "x"]}) == {"tools": [1, "x"]}
    assert sort_tools({}) == {}


@pytest.mark.parametrize("breaker", [b for b in BREAKERS if b.group == "timestamp"], ids=lambda b: b.name)
def test_a_clock_moves_to_the_end_and_stays(breaker):
    fixed = fix(bodies(), breaker.apply)
    assert worst(fixed) in (None, Severity.NOTE)
    for (body, _), (given, _) in zip(fixed, bodies(), strict=True):
        assert len(body["messages"]) == len(given["messages"])
        assert SYSTEM in body["messages"][0]["content"]
        assert body["messages"][-1]["content"].startswith(given["messages"][-1]["content"])
    clock = breaker.apply(bodies()[2][0], 2)["messages"][0]["content"].removesuffix(SYSTEM).strip().splitlines()[-1]
    assert clock in fixed[2][0]["messages"][-1]["content"]
    assert clock in fixed[3][0]["messages"][len(fixed[2][0]["messages"]) - 1]["content"]


def in_several_lines(body, number):
    """A clock, an id, a counter: at the top, in the middle and at the end."""
    body = deepcopy(body)
    middle = f"Session {number:08x}-aaaa-bbbb-cccc-000000000000 is yours."
    said = [f"It is 10:0{number}:00 now.", "", SYSTEM, middle, "Be brief.", SYSTEM, f"Requests so far: {number}"]
    body["messages"][0]["content"] = "\n".join(said)
    return body


def test_all_lines_that_change_move_at_once():
    fixed = fix(bodies(), in_several_lines)
    assert worst(fixed) in (None, Severity.NOTE)
    for number, (body, _) in enumerate(fixed):
        assert body["messages"][0]["content"] == f"{SYSTEM}\nBe brief.\n{SYSTEM}"
        moved = [f"It is 10:0{number}:00 now.", f"Session {number:08x}-aaaa", f"Requests so far: {number}"]
        assert all(line in body["messages"][-1]["content"] for line in moved)
    assert fix(fixed) == fixed, "there is nothing left to fix"


def test_a_line_that_changes_only_later_moves_as_well():
    def change(body, number):
        body = deepcopy(body)
        said = [f"It is 10:0{number}:00 now.", SYSTEM, f"Errors so far: {number // 2}", SYSTEM]
        body["messages"][0]["content"] = "\n".join(said)
        return body

    fixed = fix(bodies(), change)
    assert {body["messages"][0]["content"] for body, _ in fixed} == {f"{SYSTEM}\n{SYSTEM}"}


def test_breakpoints_are_set_where_they_belong():
    fixed = fix(messages_bodies())
    assert worst(fixed) is None
    for body, _ in fixed:
        assert json.dumps(body).count("cache_control") == 2
        assert "cache_control" in body["system"][-1]
        assert "cache_control" in body["messages"][-1]["content"][-1]


def test_too_many_breakpoints_become_two():
    body, _ = messages_bodies(system=[{"type": "text", "text": str(i), "cache_control": {}} for i in range(6)])[0]
    assert json.dumps(place_breakpoints(body)).count("cache_control") == 2


def test_mending_twice_is_mending_once():
    once = fix(bodies(), shuffle_tools)
    assert fix(once) == once


def lines(rows):
    return [each for i, row in enumerate(rows, 1) for each in parse_line(json.dumps(row), "a", i)]


def test_a_file_keeps_what_else_it_told():
    rows = [{"request": body, "at": i, "mine": [i]} for i, (body, _) in enumerate(bodies())]
    written = [json.loads(line) for line in fix_file(sort_into_runs(lines(rows), Meter()))]
    assert [row["mine"] for row in written] == [[0], [1], [2], [3]]
    assert written[0]["request"]["messages"] == rows[0]["request"]["messages"]


def test_a_transcript_cannot_be_fix():
    with pytest.raises(ConfigError, match="transcripts"):
        [*fix_file(sort_into_runs(lines([{"system": "S", "messages": TALK}]), Meter()))]
