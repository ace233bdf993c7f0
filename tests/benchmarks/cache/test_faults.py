"""Where two requests part, and which explanations of that are right."""

from typing import Any

import pytest
from benchmarks.cache.faults import Fault, Told, find_fault, is_explained
from benchmarks.cache.wire import CauseBody, Explanation, SpanBody

SYSTEM = "It is 10:01 now. Be kind."
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
USER: dict[str, Any] = {"role": "user", "content": "hello"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "Well met.", "tool_calls": [CALL]}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


def body(*messages: dict[str, Any], system: str = SYSTEM, tools: str = "ab") -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, USER, *messages], "tools": [tool(n) for n in tools]}


BEFORE = Told(body(), ANSWER)


def test_a_request_that_only_goes_on_has_no_fault():
    assert find_fault(BEFORE, body(ANSWER, USER)) is None


def test_the_first_part_that_differs_is_found():
    later = SYSTEM.replace("10:01", "10:02")
    assert find_fault(BEFORE, body(ANSWER, system=later, tools="ba")) == Fault("system", 0, 10, SYSTEM, later)
    shuffled = find_fault(BEFORE, body(ANSWER, tools="ac"))
    assert shuffled
    assert (shuffled.kind, shuffled.index) == ("tool", 1)
    assert find_fault(BEFORE, body(ANSWER | {"content": "Well."})) == Fault("message", 2, 4, "Well met.", "Well.")
    rewritten = CALL | {"function": {"name": "find", "arguments": '{"a":1}'}}
    assert find_fault(BEFORE, body(ANSWER | {"tool_calls": [rewritten]})) == Fault("call", 2, 5, '{"a": 1}', '{"a":1}')
    late = {"role": "system", "content": "Be brief."}
    assert find_fault(BEFORE, body(late)) == Fault("system", 2, 0, "Well met.", "Be brief.")


def explain(cause: str, kind: str, index: int | None, previous: str, current: str) -> Explanation:
    causes = [CauseBody("block", 3), CauseBody(cause, 99, 5, SpanBody(kind, index, 10), "It is", previous, current)]
    return Explanation("x", causes=causes)


LATER = body(ANSWER, system=SYSTEM.replace("10:01", "10:02"))


@pytest.mark.parametrize(
    ("cause", "is_right"),
    [
        (("diverged", "system", 0, "10:01 now. Be", "10:02 now. Be"), True),
        (("diverged", "system", 0, "1 now.", "2 now."), True),
        (("retokenised", "system", 0, "10:01 now.", "10:02 now."), False),
        (("diverged", "message", 0, "10:01 now.", "10:02 now."), False),
        (("diverged", "system", 1, "10:01 now.", "10:02 now."), False),
        (("diverged", "system", 0, "10:02 now.", "10:01 now."), False),
        (("diverged", "system", 0, "10:01 now.", "never said"), False),
        (("diverged", "system", 0, "", "10:02 now."), False),
        (("evicted", "system", 0, "10:01 now.", "10:02 now."), False),
    ],
)
def test_an_explanation_names_the_cause_the_part_and_the_words(cause: Any, is_right: bool):
    assert is_explained(explain(*cause), find_fault(BEFORE, LATER), LATER["messages"]) == is_right


@pytest.mark.parametrize(
    ("cause", "is_right"),
    [
        (("retokenised", "message", 2, "Wel|l met.", "Well| met."), True),
        (("retokenised", "call", 2, '{"a"|: 1}', '{"|a": 1}'), True),
        (("retokenised", "message", 1, "hel|lo", "hello"), False),
        (("retokenised", "message", 9, "Wel|l met.", "Well| met."), False),
        (("retokenised", "call", 2, "1|}", "1}|<|im_end|>|and so on"), True),
        (("retokenised", "message", 2, "other", "words"), False),
        (("diverged", "message", 2, "Wel|l met.", "Well| met."), False),
    ],
)
def test_without_a_fault_only_an_answer_can_have_been_cut_otherwise(cause: Any, is_right: bool):
    messages = body(ANSWER, USER)["messages"]
    assert is_explained(explain(*cause), None, messages) == is_right
    assert not is_explained(Explanation("x"), None, messages)


def test_an_answer_that_is_no_text_has_really_changed():
    messages = body(ANSWER | {"content": "Well\N{REPLACEMENT CHARACTER} met."}, USER)["messages"]
    words = ("message", 2, "Well met.", "Well\N{REPLACEMENT CHARACTER} met.")
    assert is_explained(explain("diverged", *words), None, messages)
    assert not is_explained(explain("retokenised", *words), None, messages)
