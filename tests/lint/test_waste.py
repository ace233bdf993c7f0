"""Predicted waste against what a prefix cache would have measured, with every breaker of `benchmarks.cache`.

The cache is a small exact one: a token is a word or a sign, a prompt is written as a chat template writes it, and what
earlier prompts and answers began with is found.
"""

import json
import re
from dataclasses import replace

import pytest
from benchmarks.cache.breakers import BREAKERS
from benchmarks.cache.script import generate_scripts
from tests.lint.stories import assistant, call, result, rules_of, user

from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import lint
from hotloop.lint.finding import Severity
from hotloop.lint.meter import Meter
from hotloop.lint.parts import parse_answer
from hotloop.lint.requests import LintedRequest
from hotloop.wire.usage import ApiUsage

RIGHT = {
    "time, one line": "HL002",
    "time, a section": "HL002",
    "time as a date": "HL002",
    "billing header": "HL002",
    "time, unlisted": "HL002",
    "tools shuffled": "HL003",
    "schema keys shuffled": "HL004",
    "arguments rewritten": "HL010",
}
PLACE = {"HL002": "messages[0].content", "HL003": "tools[", "HL004": "tools[", "HL010": "messages["}


def tokens(body):
    system, *rest = body["messages"]
    return _cut(f"<system>{system['content']}{[json.dumps(t) for t in body.get('tools', ())]}" + _write(rest))


def _write(messages):
    return "".join(f"<{m['role']}>{m.get('content') or ''}{m.get('tool_calls', '')}" for m in messages)


def _cut(text):
    return re.findall(r"\w+|[^\w\s]|\s+", text)


def common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def talks():
    """Of a small office: what is heard is generated, and so are the answers."""
    for script in generate_scripts(max_scripts=6, max_turns=6):
        messages = [{"role": "system", "content": script.system}]
        for i, beat in enumerate(script.beats):
            messages += [result(news.text) if news.is_result else user(news.text) for news in beat.news]
            arguments = json.dumps({"number": i, "reason": f"because of {i}"})
            answer = assistant("", call(beat.tool, arguments)) if beat.tool else assistant(f"That is answer {i}.")
            yield script.id, {"model": "tiny", "messages": [*messages], "tools": [*script.tools]}, answer
            messages.append(answer)


def hold(breaks):
    """The exchanges, and how many tokens of the request before, its answer included, were not found again."""
    exchanges, seen, before, num_lost = [], [], {}, 0
    for number, (run, body, answer) in enumerate(talks()):
        broken = breaks(body, number)
        prompt = tokens(broken)
        whole = prompt + _cut(_write([answer]))
        if run in before:
            num_cached = max(common(prompt, earlier) for earlier in seen)
            num_lost += max(0, len(before[run]) - num_cached)
        seen.append(whole)
        before[run] = whole
        parsed = replace(parse_answer(answer, "chat"), usage=ApiUsage(len(prompt), None, len(whole) - len(prompt)))
        exchanges.append(LintedRequest(body=broken, api="chat", answer=parsed, run=run))
    return exchanges, num_lost


def predict(exchanges):
    runs = sort_into_runs(exchanges, Meter())
    return lint(runs), sum(step.num_lost for run in runs for step in run.steps[1:])


def test_nothing_is_predicted_where_nothing_is_broken():
    exchanges, num_lost = hold(lambda body, number: body)
    report, num_predicted = predict(exchanges)
    assert num_predicted == num_lost == 0
    assert not [f for f in report.findings if f.severity > Severity.NOTE]


@pytest.mark.parametrize("breaker", [b for b in BREAKERS if b.name in RIGHT], ids=lambda b: b.name)
def test_the_right_rule_fires_in_every_run_and_its_price_is_right(breaker):
    exchanges, num_lost = hold(breaker.apply)
    report, num_predicted = predict(exchanges)
    right = [f for f in report.findings if f.rule == RIGHT[breaker.name]]
    assert {f.run for f in right} == {run.id for run in report.runs}
    if breaker.name == "arguments rewritten":  # a handful of tokens a turn: only its size is right
        assert num_predicted < 0.05 * report.num_prompt
    else:
        assert num_predicted == pytest.approx(num_lost, rel=0.1)
        assert rules_of(report) - {RIGHT[breaker.name]} <= {"HL013", "HL014"}
    assert all(f.place.path.startswith(PLACE[f.rule]) for f in right)
