"""Whatever requests there are: fixing them twice changes nothing more, loses nothing, and helps."""

import json
from collections import Counter

from benchmarks.cache.breakers import BREAKERS
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lint.stories import RULES, TOOLS, assistant, bodies, exchanges, messages_bodies, user
from tests.properties import examples

from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import lint
from hotloop.lint.fix import fix_runs
from hotloop.lint.meter import Meter
from hotloop.lint.parts import strip_breakpoint

CLAIMED = {"HL002", "HL003", "HL004", "HL015", "HL016"}
CHANGES = [breaker.apply for breaker in BREAKERS if breaker.group in ("none", "timestamp", "tools")]

words = st.text("ab c.\n", min_size=1, max_size=30)
talks = st.lists(words, min_size=1, max_size=4).map(
    lambda texts: [said for i, text in enumerate(texts) for said in (user(f"{i} {text}"), assistant(f"{text} {i}"))]
)
tools = st.lists(st.sampled_from(TOOLS), unique_by=id, max_size=5)


def fix(pairs):
    fixed = fix_runs(sort_into_runs(exchanges(pairs), Meter()))
    return [(fixed[i], answer) for i, (_, answer) in enumerate(pairs)]


def chat(talk, offered, change):
    pairs = bodies(talk, tools=offered, system=f"You are an agent.\n{RULES}")
    return [(change(body, number), answer) for number, (body, answer) in enumerate(pairs)]


def mark(places, body):
    """A breakpoint on the first block of these messages."""
    marked = [
        message
        | {"content": [message["content"][0] | {"cache_control": {"type": "ephemeral"}}, *message["content"][1:]]}
        if i in places
        else message
        for i, message in enumerate(body["messages"])
    ]
    return body | {"messages": marked}


def said_in(body):
    """Every line of the messages, wherever it stands, and every tool."""
    texts = [m["content"] for m in body["messages"] if isinstance(m.get("content"), str)]
    lines = Counter(line for text in texts for line in text.split("\n") if line.strip())
    for added in ("<system>", "</system>"):
        del lines[added]
    return lines, sorted(json.dumps(tool, sort_keys=True) for tool in body.get("tools", ()))


def without_required_order(tool):
    return json.loads(
        json.dumps(tool),
        object_hook=lambda value: value | ({"required": sorted(value["required"])} if "required" in value else {}),
    )


@settings(max_examples=examples(60))
@given(talks, tools, st.sampled_from(CHANGES))
def test_mending_is_idempotent_loses_nothing_and_helps(talk, offered, change):
    pairs = chat(talk, offered, change)
    once = fix(pairs)
    assert [json.dumps(body) for body, _ in fix(once)] == [json.dumps(body) for body, _ in once]
    last = [json.dumps(body) for body, _ in fix(pairs)]
    assert last == [json.dumps(body) for body, _ in once]
    report = lint(sort_into_runs(exchanges(once), Meter()))
    assert not CLAIMED & {finding.rule for finding in report.findings if finding.waste.num_recomputed}
    for (given_, _), (fixed, _) in zip(pairs, once, strict=True):
        then, now = (
            {**body, "tools": [*map(without_required_order, body.get("tools", ()))]} for body in (given_, fixed)
        )
        assert said_in(then)[1] == said_in(now)[1]
        assert not said_in(then)[0] - said_in(now)[0]
        assert [m["role"] for m in given_["messages"]] == [m["role"] for m in fixed["messages"]]


@settings(max_examples=examples(30))
@given(st.integers(1, 4), st.sets(st.integers(0, 6), max_size=6))
def test_breakpoints_are_all_that_is_moved(num_turns, places):
    pairs = messages_bodies(num_turns=num_turns, mark=lambda body, number: mark(places, body))
    once = fix(pairs)
    assert fix(once) == once
    assert not CLAIMED & {finding.rule for finding in lint(sort_into_runs(exchanges(once), Meter())).findings}
    for (given_, _), (fixed, _) in zip(pairs, once, strict=True):
        bare = [[*map(strip_breakpoint, message["content"])] for message in given_["messages"]]
        assert bare == [[*map(strip_breakpoint, message["content"])] for message in fixed["messages"]]
