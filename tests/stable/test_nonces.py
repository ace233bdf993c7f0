"""What changes with every request leaves the top of the prompt."""

import pytest

from hotloop.core.message import Message
from hotloop.stable.nonces import Nonces

BILLING = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={};"
RULES = "You are a careful agent."


@pytest.mark.parametrize("between", ["\n", "", "\n\n"])
def test_a_billing_header_is_dropped_and_nothing_else(between: str) -> None:
    system = [Message("system", f"{BILLING.format(cch)}{between}{RULES}") for cch in ("eb6c6", "0aaa9")]
    settled = [Nonces().settle((message, Message("user", "hi"))) for message in system]
    assert settled[0] == settled[1]
    messages, changes = settled[0]
    assert messages[0].content.strip() == RULES
    assert changes == ("messages[0]: the billing header was dropped",)


def test_only_the_first_system_messages_are_looked_at() -> None:
    messages = (Message("system", RULES), Message("user", BILLING.format("1")), Message("system", BILLING.format("2")))
    assert Nonces().settle(messages) == (messages, ())


TIMES = [
    "Current date and time: Tuesday, June 9, 2026, 03:0{}:20 PM +03:00",
    "Current time: 2026-06-09T15:0{}:20Z",
    "The current time is 15:0{}",
    "## Current Date & Time\nSunday, February 2, 2026, 6:4{} PM (America/Los_Angeles)",
    "## Current Time\n2026-02-06 14:0{} (Friday)",
    "The current date is 2025-05-04 10:20:3{}.",
]
TURNS = [Message("user", "hi"), Message("assistant", "a"), Message("tool", "42"), Message("assistant", "b")]
TURNS.append(Message("user", "bye"))


@pytest.mark.parametrize("line", TIMES)
@pytest.mark.parametrize("frame", ["{}\n" + RULES, RULES + "\n{}\nBe brief.", RULES + "\n{}"])
def test_a_time_that_changes_goes_where_the_conversation_has_got_to(line: str, frame: str) -> None:
    nonces = Nonces()
    system = [Message("system", frame.format(line.format(i))) for i in range(4)]
    first = (system[0], TURNS[0])
    assert nonces.settle(first) == (first, ())  # nobody can know yet
    read: tuple[Message, ...] = ()
    for i, num_turns in ((1, 1), (2, 3), (3, 5)):
        now = line.format(i)
        read_before, (read, changes) = read, nonces.settle((system[i], *TURNS[:num_turns]))
        assert now not in read[0].content
        assert read[: len(read_before)] == read_before  # every message, and every time, stays where it was
        assert read[-1].content == f"{TURNS[num_turns - 1].content}\n\n<system>\n{now}\n</system>"
        assert changes == ("messages[0]: the time of day was moved behind the newest message",)


def test_a_time_that_stands_still_stays_where_it_is() -> None:
    nonces = Nonces()
    for num_turns in (1, 3, 5):
        messages = (Message("system", f"The current time is 15:00.\n{RULES}"), *TURNS[:num_turns])
        assert nonces.settle(messages) == (messages, ())


def test_a_time_is_told_once_in_a_conversation() -> None:
    nonces = Nonces()
    nonces.settle((Message("system", f"Current time: 10:00\n{RULES}"), TURNS[0]))
    system = Message("system", f"Current time: 10:01\n{RULES}")
    read = nonces.settle((system, *TURNS[:1]))[0]
    assert nonces.settle((system, *TURNS))[0] == (*read, *TURNS[1:])


@pytest.mark.parametrize(
    "words", ["Today is 2026-06-09.", "Current date: 2026-06-09", "The current time is unknown.", RULES]
)
def test_what_changes_once_a_day_or_never_stays(words: str) -> None:
    messages = (Message("system", words), Message("user", "hi"))
    assert Nonces().settle(messages) == (messages, ())


def test_a_conversation_without_a_user_loses_nothing_but_the_time() -> None:
    nonces = Nonces()
    nonces.settle((Message("system", f"Current time: 10:00\n{RULES}"),))
    messages, _ = nonces.settle((Message("system", f"Current time: 10:01\n{RULES}"),))
    assert messages == (Message("system", RULES),)


def test_words_of_a_nonce_that_stand_elsewhere_are_left_alone() -> None:
    text = "İn the current folder.\nThe current time is told below, currently:\nIt is not 10:00.\n" + RULES
    for content in (text, text[1:], "current " * 1000 + "time 10:00"):
        messages = (Message("system", content), TURNS[0])
        assert Nonces().settle(messages) == (messages, ())
