"""HL001 to HL010: each is found where it is, and nothing is found where all is well."""

import json
from dataclasses import replace

import pytest
from benchmarks.cache.breakers import BREAKERS, rewrite_arguments, say_late, shuffle_keys, shuffle_tools
from tests.lint.stories import (
    RULES,
    TALK,
    TOOLS,
    assistant,
    bodies,
    call,
    exchanges,
    found,
    lint_chat,
    result,
    rules_of,
    user,
)

from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import lint
from hotloop.lint.finding import Severity
from hotloop.lint.meter import Meter
from hotloop.wire.usage import ApiUsage


def with_system(body, text):
    return body | {"messages": [{"role": "system", "content": text}, *body["messages"][1:]]}


def only(report, rule):
    """The one finding of a rule, which is the only rule that found anything but notes."""
    assert {finding.rule for finding in report.findings if finding.severity > Severity.NOTE} <= {rule}
    (finding,) = found(report, rule)
    return finding


def test_a_clean_conversation_has_no_findings():
    assert not lint_chat().findings


def test_hl001_words_that_change_in_front():
    carts = ["empty", "one parcel", "one parcel, a letter", "a letter"]
    report = lint_chat(lambda body, number: with_system(body, f"The cart: {carts[number]}!\n{RULES}"))
    finding = only(report, "HL001")
    assert (finding.severity, finding.place.path, finding.place.request) == (Severity.WARNING, "messages[0].content", 1)
    assert len(finding.others) == 2
    assert finding.waste.num_recomputed > 3 * len(RULES) / 4


def test_hl001_words_that_change_at_the_end_cost_next_to_nothing():
    def remind(body, number):
        *rest, last = body["messages"]
        return body | {
            "messages": [*rest, last | {"content": f"{last['content']}\nThe cart: {'ab'[number % 2]} things"}]
        }

    assert not [f for f in lint_chat(remind).findings if f.severity > Severity.NOTE]


@pytest.mark.parametrize("breaker", [b for b in BREAKERS if b.group == "timestamp"], ids=lambda b: b.name)
def test_hl002_a_clock_in_front(breaker):
    report = lint_chat(breaker.apply)
    finding = only(report, "HL002")
    assert (finding.severity, finding.place.path) == (Severity.WARNING, "messages[0].content")
    text = breaker.apply(bodies()[1][0], 1)["messages"][0]["content"]
    assert finding.place.end <= text.index("You are")


def test_hl002_a_time_that_stands_still_is_fine():
    assert not lint_chat(system=f"The time is 2024-05-15 15:00:00.\n{RULES}").findings


def test_hl002_one_request_alone_is_worth_a_note():
    report = lint(sort_into_runs(exchanges(bodies(TALK[:2], system=f"The time is 15:00:00.\n{RULES}")), Meter()))
    (finding,) = report.findings
    assert (finding.rule, finding.severity) == ("HL002", Severity.NOTE)
    assert "15:00:00" in finding.words


def test_hl002_an_id_for_each_conversation():
    pairs = [bodies(system=f"Session 1b4e28ba-2fa1-11d2-883f-0016d3cca42{i}\n{RULES}") for i in range(2)]
    report = lint(
        sort_into_runs([*exchanges(pairs[0]), *exchanges([(b, a) for b, a in pairs[1]], run="other")], Meter())
    )
    finding = only(report, "HL002")
    assert (finding.place.request, finding.severity) == (4, Severity.WARNING)


def test_hl003_tools_in_another_order():
    finding = only(lint_chat(shuffle_tools), "HL003")
    assert finding.place.path.startswith("tools[")
    assert finding.waste.num_recomputed > 300


def test_hl004_keys_in_another_order():
    finding = only(lint_chat(shuffle_keys), "HL004")
    assert finding.place.path.startswith("tools[")


def test_hl005_a_tool_that_comes_late():
    finding = only(lint_chat(lambda body, number: body | {"tools": TOOLS[: 3 + (number > 1)]}), "HL005")
    assert (finding.place.path, finding.place.request) == ("tools[3]", 2)
    assert "'refund' was added" in finding.words


def test_hl005_another_conversation_may_have_other_tools():
    found_ = [*exchanges(bodies(), run="a"), *exchanges(bodies(tools=TOOLS[:2]), run="b")]
    assert not [f for f in lint(sort_into_runs(found_, Meter())).findings if f.severity > Severity.NOTE]


LONG = "what the driver wrote down, " * 40


def long_talk():
    return [*TALK[:2], result(LONG), *TALK[3:]]


def test_hl006_a_result_that_is_shortened_later():
    def shorten(body, number):
        messages = [m | {"content": "[shortened]"} if m["content"] == LONG else m for m in body["messages"]]
        return body | {"messages": messages} if number == 3 else body

    talk = [*long_talk()[:4], user("Tell me more. " * 30), *long_talk()[5:]]
    finding = only(lint_chat(shorten, talk), "HL006")
    assert (finding.place.path, finding.place.request) == ("messages[3].content", 3)


def test_hl007_a_window_that_slides():
    def slide(body, number):
        return body | {"messages": [body["messages"][0], *body["messages"][1 + 2 * (number > 1) :]]}

    talk = [user("Hello. " * 10), assistant("Hello."), user("One. " * 60), assistant("Two."), user("3"), assistant("4")]
    finding = only(lint_chat(slide, talk), "HL007")
    assert (finding.place.path, finding.place.request) == ("messages[1].content", 2)
    assert "and 1 more" in finding.words


def test_hl007_a_summary_of_everything_is_fine():
    def compact(body, number):
        return (
            body | {"messages": [body["messages"][0], user("All so far in short."), user("Go on.")]}
            if number > 2
            else body
        )

    report = lint(sort_into_runs(exchanges(bodies(), compact, run="one"), Meter()))
    assert not [f for f in report.findings if f.severity > Severity.NOTE]


def thoughtful(keeps):
    talk = [
        user("Where is it?"),
        assistant("", call("find", '{"id": "4711"}'), reasoning_content="I should look it up. " * 5),
        result("in the van"),
        assistant("In the van."),
    ]

    def drop(body, number):
        if keeps:
            return body
        return body | {"messages": [{k: v for k, v in m.items() if k != "reasoning_content"} for m in body["messages"]]}

    return lint_chat(drop, talk)


def test_hl008_thinking_that_is_dropped_in_a_loop():
    finding = only(thoughtful(keeps=False), "HL008")
    assert (finding.severity, finding.place.path) == (
        Severity.WARNING,
        "messages[2].tool_calls[0].function.arguments",
    )


def test_hl008_thinking_that_comes_back_is_fine():
    assert not thoughtful(keeps=True).findings


def test_hl008_after_the_user_has_spoken_it_is_a_note():
    talk = [user("Hi"), assistant("Hello!", reasoning_content="A greeting."), user("Bye"), assistant("Bye!")]
    report = lint_chat(
        lambda body, number: (
            body | {"messages": [{k: v for k, v in m.items() if k != "reasoning_content"} for m in body["messages"]]}
        ),
        talk,
    )
    assert [(f.rule, f.severity) for f in report.findings] == [("HL008", Severity.NOTE)]


def test_hl009_a_system_text_that_grows():
    report = lint_chat(lambda body, number: with_system(body, RULES + "\nKeep it short now." * (number > 1)))
    finding = only(report, "HL009")
    assert (finding.place.path, finding.place.request) == ("messages[0].content", 2)
    assert "Keep it short" in finding.words


def test_hl009_a_late_system_turn():
    finding = only(lint_chat(say_late), "HL009")
    assert (finding.place.path, finding.place.request) == ("messages[5].content", 2)
    assert finding.waste.num_recomputed == 0


def test_hl010_arguments_written_anew():
    finding = found(lint_chat(rewrite_arguments), "HL010")[0]
    assert finding.place.path == "messages[2].tool_calls[0].function.arguments"
    assert rules_of(lint_chat(rewrite_arguments)) == {"HL010"}


def test_hl010_arguments_with_another_value_are_history_rewritten():
    def lie(body, number):
        return json.loads(json.dumps(body).replace("4711-0815", "9999-9999")) if number == 3 else body

    assert "HL010" not in rules_of(lint_chat(lie))


def with_usage(numbers):
    """Prompt, cached and output tokens of each request."""
    made = exchanges(bodies())
    return [
        replace(each, answer=replace(each.answer, usage=ApiUsage(*usage)))
        for each, usage in zip(made, numbers, strict=True)
    ]


def test_hl010_an_answer_that_was_not_found_again():
    numbers = [(1600, 0, 100), (1750, 1696, 120), (1900, 1744, 40), (2000, 1936, 10)]
    finding = only(lint(sort_into_runs(with_usage(numbers), Meter())), "HL010")
    assert (finding.severity, finding.place.request, finding.place.path) == (Severity.WARNING, 2, "messages[4].content")
    assert finding.waste.num_recomputed == 1750 + 120 - 1744


def test_hl010_a_server_that_never_keeps_answers_is_a_note():
    numbers = [(1600, 0, 100), (1750, 1600, 120), (1900, 1744, 90), (2000, 1888, 10)]
    assert {f.severity for f in lint(sort_into_runs(with_usage(numbers), Meter())).findings} == {Severity.NOTE}


def test_hl010_the_end_of_a_block_is_no_loss():
    numbers = [(1600, 0, 100), (1750, 1696, 120), (1900, 1856, 40), (2000, 1936, 10)]
    assert not lint(sort_into_runs(with_usage(numbers), Meter())).findings
