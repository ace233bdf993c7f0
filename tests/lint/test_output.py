"""Reports for people, programs, code scanners and pull requests."""

import io
import json

import pytest
from rich.console import Console
from tests.lint.stories import bodies

from hotloop.bench.cache.breakers import BREAKERS
from hotloop.core.prices import Prices
from hotloop.lint.costs import Costs
from hotloop.lint.engine import choose, lint
from hotloop.lint.finding import Waste
from hotloop.lint.meter import Meter
from hotloop.lint.output import render_github, render_json, render_sarif, render_text, render_waste
from hotloop.lint.requests import parse_line
from hotloop.lint.weave import weave

CLOCK = next(breaker for breaker in BREAKERS if breaker.name == "time, unlisted")


def report(words="{}", *, costs=None):
    """One in which a time stands in front, read from a file."""
    rows = []
    for number, (body, answer) in enumerate(bodies()):
        usage = {"prompt_tokens": 2000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 1000}}
        broken = CLOCK.apply(body, number)
        broken["messages"][0]["content"] = words.format(broken["messages"][0]["content"])
        rows.append({"request": broken, "response": {"choices": [{"message": answer}], "usage": usage}, "ttft_ms": 500})
    made = [each for i, row in enumerate(rows, 1) for each in parse_line(json.dumps(row), "odd, name.jsonl", i)]
    return lint(weave(made, Meter()), costs=costs)


def shown(found):
    stream = io.StringIO()
    Console(file=stream, width=200).print(render_text(found))
    return stream.getvalue()


def test_text_says_what_where_and_how_to_mend_it():
    text = shown(report())
    assert "HL002 warning clock-in-prefix" in text
    assert "request 1, messages[0].content" in text
    assert "mend: Drop it" in text
    assert "1 warning in 4 requests of 1 run;" in text


def test_text_is_never_taken_for_markup():
    assert "'[red][10:00:37" in shown(report("[red]{}"))


def test_milliseconds_by_what_was_measured_and_money_by_the_table():
    found = report(costs=Costs(lambda model: Prices(prompt=2.0, cached=0.5)))
    waste = found.findings[0].waste
    assert waste.ms == pytest.approx(waste.num_reread / 2)  # 1,000 tokens in 500 ms
    assert waste.money == pytest.approx(waste.num_reread * 1.5e-6)


def test_a_speed_that_is_given_goes_first():
    waste = report(costs=Costs(prefill_tokens_per_s=1000.0)).findings[0].waste
    assert waste.ms == pytest.approx(waste.num_reread)
    assert waste.money is None


def test_json_has_figures_and_places():
    rendered = json.loads(json.dumps(render_json(report())))
    (finding,) = rendered["findings"]
    assert finding["place"]["line"] == 2
    assert finding["place"]["path"] == "messages[0].content"
    assert len(finding["others"]) == 2
    assert rendered["summary"]["findings"] == {"note": 0, "warning": 1, "error": 0}
    assert rendered["summary"]["reported_lost_tokens"] == 3 * (2010 - 1000)


def test_sarif_has_rules_levels_and_lines():
    rendered = json.loads(json.dumps(render_sarif(report())))
    (run,) = rendered["runs"]
    assert rendered["version"] == "2.1.0"
    assert {result["ruleId"] for result in run["results"]} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    location = run["results"][0]["locations"][0]
    assert location["physicalLocation"]["region"] == {"startLine": 2}
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "messages[0].content"
    assert run["results"][0]["level"] == "warning"


def test_github_lines_are_escaped():
    (line,) = render_github(report())
    assert line.startswith("::warning file=odd%2C name.jsonl,line=2,title=HL002 clock-in-prefix::request 1")
    assert "\n" not in line


def test_nothing_costs_nothing():
    assert render_waste(Waste()) == ""
    assert render_waste(Waste(num_reread=1200, ms=3.0, money=0.5)) == "1,200 tokens read again, 3 ms, $0.5000"


def test_rules_are_chosen_by_id_or_name():
    assert [rule.id for rule in choose(["HL003", "clock-in-prefix"], [])] == ["HL003", "HL002"]
    assert "HL003" not in [rule.id for rule in choose([], ["unstable-tool-order"])]
