"""Reports for people, programs, code scanners and pull requests."""

import io
import json
import re

import pytest
from benchmarks.cache.breakers import BREAKERS
from rich.console import Console
from tests.lint.stories import TALK, assistant, bodies, exchanges, user

from hotloop.core.prices import Prices
from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import Costs, choose, lint
from hotloop.lint.finding import Waste
from hotloop.lint.meter import Meter
from hotloop.lint.output import render_github, render_json, render_sarif, render_text, render_waste
from hotloop.lint.requests import parse_line
from hotloop.lint.rules import RULES

CLOCK = next(breaker for breaker in BREAKERS if breaker.name == "time, unlisted")


def report(words="{}", *, costs=None, source="odd, name.jsonl"):
    """One in which a time stands in front, read from a file."""
    rows = []
    for number, (body, answer) in enumerate(bodies()):
        usage = {"prompt_tokens": 2000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 1000}}
        broken = CLOCK.apply(body, number)
        broken["messages"][0]["content"] = words.format(broken["messages"][0]["content"])
        rows.append({"request": broken, "response": {"choices": [{"message": answer}], "usage": usage}, "ttft_ms": 500})
    made = [each for i, row in enumerate(rows, 1) for each in parse_line(json.dumps(row), source, i)]
    return lint(sort_into_runs(made, Meter()), costs=costs)


def shown(found):
    stream = io.StringIO()
    Console(file=stream, width=200).print(render_text(found))
    return stream.getvalue()


def test_text_says_what_where_and_how_to_mend_it():
    text = shown(report())
    assert "HL002 warning clock-in-prefix  run-1  odd, name.jsonl:2\n" in text
    assert "request 1, messages[0].content" in text
    assert "fix: Drop it" in text
    assert "1 warning in 4 requests of 1 run;" in text


def test_text_is_never_taken_for_markup():
    assert "'[red][10:00:37" in shown(report("[red]{}"))


def test_milliseconds_by_what_was_measured_and_money_by_the_table():
    found = report(costs=Costs(lambda model: Prices(prompt=2.0, cached=0.5)))
    waste = found.findings[0].waste
    assert waste.ms == pytest.approx(waste.num_recomputed / 2)  # 1,000 tokens in 500 ms
    assert waste.money == pytest.approx(waste.num_recomputed * 1.5e-6)


def test_a_speed_that_is_given_goes_first():
    waste = report(costs=Costs(prefill_tokens_per_s=1000.0)).findings[0].waste
    assert waste.ms == pytest.approx(waste.num_recomputed)
    assert waste.money is None


def test_json_has_figures_and_places():
    rendered = json.loads(json.dumps(render_json(report())))
    (finding,) = rendered["findings"]
    assert finding["place"]["line"] == 2
    assert finding["place"]["path"] == "messages[0].content"
    assert len(finding["others"]) == 2
    assert finding["fix"]
    assert rendered["summary"]["findings"] == {"note": 0, "warning": 1, "error": 0}
    assert rendered["summary"]["predicted_recomputed_tokens"] > 0
    assert rendered["summary"]["reported_lost_tokens"] == 3 * (2010 - 1000)


def check_sarif(log):
    """What SARIF 2.1.0 and the code scanners that read it ask for."""
    assert {"$schema", "version", "runs"} == log.keys()
    assert log["version"] == "2.1.0"
    assert log["$schema"].startswith("https://")
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert all(rule["shortDescription"]["text"] and rule["help"]["text"] for rule in rules)
    assert {rule["defaultConfiguration"]["level"] for rule in rules} <= {"none", "note", "warning", "error"}
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        assert result["locations"]
        assert all(isinstance(value, str) and value for value in result["partialFingerprints"].values())
        for location in result["locations"]:
            physical = location["physicalLocation"]
            assert re.fullmatch(r"[\w./%~-]+", physical["artifactLocation"]["uri"])
            assert physical["region"]["startLine"] >= 1
            assert location["logicalLocations"][0]["fullyQualifiedName"]
    prints = [result["partialFingerprints"]["hotloopPlace/v1"] for result in run["results"]]
    assert len({*prints}) == len(prints)
    return run


def test_sarif_has_rules_levels_and_lines():
    run = check_sarif(json.loads(json.dumps(render_sarif(report()))))
    assert len(run["tool"]["driver"]["rules"]) == len(RULES)
    location = run["results"][0]["locations"][0]
    assert location["physicalLocation"]["artifactLocation"] == {"uri": "odd%2C%20name.jsonl"}
    assert location["physicalLocation"]["region"] == {"startLine": 2}
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "messages[0].content"
    assert run["results"][0]["level"] == "warning"


def test_fingerprints_stay_when_other_runs_come_before():
    other = [user("Something else altogether."), assistant("I see."), user("Well then."), assistant("Goodbye.")]

    def prints(*talks):
        made = [each for talk in talks for each in exchanges(bodies(talk), CLOCK.apply, source="a", line=1)]
        run = check_sarif(render_sarif(lint(sort_into_runs(made, Meter()))))
        return [result["partialFingerprints"]["hotloopPlace/v1"] for result in run["results"]]

    assert len(prints(TALK)) == 1
    assert {*prints(TALK)} < {*prints(other, TALK)}


def test_nothing_found_is_still_sarif():
    assert check_sarif(render_sarif(lint([])))["results"] == []


def test_the_same_input_gives_the_same_output():
    assert json.dumps(render_json(report())) == json.dumps(render_json(report()))
    assert json.dumps(render_sarif(report())) == json.dumps(render_sarif(report()))


def test_github_lines_are_escaped():
    (line,) = render_github(report())
    assert line.startswith("::warning file=odd%2C name.jsonl,line=2,title=HL002 clock-in-prefix::request 1")
    assert "\n" not in line


def test_nothing_ends_a_github_line_early():
    (line,) = render_github(report("100%{}", source="50%, a:b\r\nc.jsonl"))
    name, _, message = line.removeprefix("::warning file=").partition(",line=2,title=HL002 clock-in-prefix::")
    assert name == "50%25%2C a%3Ab%0D%0Ac.jsonl"
    assert "100%25" in message
    assert not {"\r", "\n"} & {*line}


def test_nothing_costs_nothing():
    assert render_waste(Waste()) == ""
    assert render_waste(Waste(num_recomputed=1200, ms=3.0, money=0.5)) == "1,200 tokens recomputed, 3 ms, $0.5000"


def test_rules_are_chosen_by_id_or_name():
    assert [rule.id for rule in choose(["HL003", "clock-in-prefix"], [])] == ["HL003", "HL002"]
    assert "HL003" not in [rule.id for rule in choose([], ["unstable-tool-order"])]
