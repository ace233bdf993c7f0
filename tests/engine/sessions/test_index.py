"""Sessions without a name, known by their prompts."""

from tests.engine.tiny import BLOCK_SIZE, make_request

from hotloop.core.request import Request
from hotloop.engine.sessions import index as lines
from hotloop.engine.sessions.index import SessionIndex


def asked(length: int, first: int = 0, salt: str = "") -> Request:
    return make_request(list(range(first, first + length)), salt=salt)


def test_a_prompt_that_goes_on_is_the_same_sessions() -> None:
    known = SessionIndex(BLOCK_SIZE)
    known.remember(asked(9), "a")
    assert known.find(asked(7)) is None
    assert known.find(asked(20, first=1)) is None
    assert known.find(asked(20, salt="other")) is None
    assert known.find(asked(20)) == "a"
    assert known.find(asked(20)) is None, "it has gone on"
    known.check()


def test_the_longest_of_those_that_fit_counts() -> None:
    known = SessionIndex(BLOCK_SIZE)
    for length in (8, 24, 16):
        known.remember(asked(length), f"{length}")
    assert known.find(asked(23)) == "16"
    assert known.find(asked(40)) == "24"
    assert known.find(asked(40)) == "8"
    known.check()


def test_a_prompt_below_a_block_is_nobodys() -> None:
    known = SessionIndex(BLOCK_SIZE)
    known.remember(asked(BLOCK_SIZE - 1), "a")
    assert known.find(asked(20)) is None


def test_the_longest_unused_is_forgotten() -> None:
    known = SessionIndex(BLOCK_SIZE)
    for i in range(lines.MAX_LINES + 1):
        known.remember(asked(8, first=10 * i), f"{i}")
    known.check()
    assert known.find(asked(9)) is None
    assert known.find(asked(9, first=10)) == "1"
