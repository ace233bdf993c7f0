"""A call comes back as the model wrote it, however the client words it."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.chat.speaking import FORMATS, hear

from hotloop.chat.assembly.recall import WrittenCalls
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, ToolCall

WRITTEN = '{"path": "caf\\u00e9/a", "n": 1.0}'
ANSWER = f'Hm.\n<tool_call>\n{{"name": "read", "arguments": {WRITTEN}}}\n</tool_call>'


def heard_calls() -> tuple[WrittenCalls, str]:
    calls = WrittenCalls()
    heard = hear(calls.watch(FORMATS["hermes"][0].parser()), *ANSWER)
    assert heard.calls == [("read", WRITTEN)]
    assert heard.text == "Hm."
    return calls, heard.ids[0]


def history(call_id: str, arguments: str) -> tuple[Message, ...]:
    return (Message("user", "go"), Message("assistant", "Hm.", tool_calls=(ToolCall(call_id, "read", arguments),)))


@pytest.mark.parametrize("prefix", ["call_", "toolu_", "fc_"])
def test_arguments_of_the_same_value_are_the_text_that_was_written(prefix: str) -> None:
    calls, call_id = heard_calls()
    given = json.dumps(json.loads(WRITTEN), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    messages, changes = calls.restore(history(prefix + call_id.removeprefix("call_"), given))
    assert messages[1].tool_calls[0].arguments == WRITTEN
    assert changes == ("messages[1]: arguments are as the model wrote them",)


@pytest.mark.parametrize("given", ['{"path": "b"}', "not JSON", WRITTEN])
def test_others_are_left_alone(given: str) -> None:
    calls, call_id = heard_calls()
    assert calls.restore(history(call_id, given)) == (history(call_id, given), ())
    assert calls.restore(history("call_other", given)) == (history("call_other", given), ())


@pytest.mark.parametrize(
    ("word", "is_plain"),
    [
        (lambda message: message.content + "".join(call.arguments for call in message.tool_calls), True),
        (lambda message: "" if message.tool_calls else message.content, True),
        (lambda message: ANSWER, False),  # the template has the same words
        (lambda message: "always this", False),  # or its own, whatever it is given
    ],
)
def test_an_answer_the_template_would_word_otherwise_is_given_to_it_as_text(
    word: Callable[[Message], str], is_plain: bool
) -> None:
    calls, call_id = heard_calls()
    given = history(call_id, WRITTEN)
    for _ in range(2):
        messages, changes = calls.verbatim(given, word)
        assert messages == ((given[0], Message("assistant", ANSWER)) if is_plain else given)
        assert changes == (("messages[1]: calls are worded as the model did",) if is_plain else ())


def test_a_space_that_a_client_adds_is_not_read() -> None:
    calls, call_id = heard_calls()
    given = history(call_id, WRITTEN)
    spaced = (given[0], replace(given[1], content="Hm. \n"))
    assert calls.verbatim(spaced, lambda message: ANSWER)[0] == given


def test_an_answer_the_client_has_edited_is_not() -> None:
    calls, call_id = heard_calls()
    for edited in (history(call_id, "{}"), (Message("assistant", tool_calls=history(call_id, WRITTEN)[1].tool_calls),)):
        assert calls.verbatim(edited, lambda message: message.content) == (edited, ())


def test_a_template_that_refuses_is_left_to_it() -> None:
    def refuse(message: Message) -> str:
        raise RequestError("no")

    calls, call_id = heard_calls()
    assert calls.verbatim(history(call_id, WRITTEN), refuse) == (history(call_id, WRITTEN), ())
