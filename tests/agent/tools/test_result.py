import enum
import itertools
import math
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pydantic
import pytest

from hotloop.agent.tools.result import MAX_CHARS, cut, cut_to_tokens, render_cut, render_result


@dataclass
class Point:
    x: int


class Colour(str, enum.Enum):  # noqa: UP042 - many programs have such enums, and str() of them is another text
    RED = "red"


@dataclass
class Page:
    words: Any


class Secret(pydantic.BaseModel):
    words: Any = pydantic.Field(serialization_alias="text")
    key: str = pydantic.Field("hunter2", exclude=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": b"\xff", 1: "\ud800"}, '{"a":"\ufffd","1":"?"}'),
        (Secret(words=Page((1, {2}))), '{"text":{"words":[1,[2]]}}'),
        ((number for number in range(3)), "[0,1,2]"),
        (Colour.RED, "red"),
        ({Colour.RED: [Colour.RED]}, '{"red":["red"]}'),
        (None, "done"),
        ("as it is", "as it is"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Point(1), '{"x":1}'),
        ([Point(1), date(2026, 1, 2)], '[{"x":1},"2026-01-02"]'),
        (b"\xff\xfebytes", "\ufffd\ufffdbytes"),
        ("half \ud800 a pair", "half ? a pair"),
        (math.nan, "NaN"),
        ({1}, "[1]"),
        (True, "true"),
    ],
)
def test_render(value: Any, text: str) -> None:
    assert render_result(value) == text


def test_what_json_has_no_word_for_is_still_told() -> None:
    assert "object object" in render_result(object())


def test_a_long_result_loses_its_middle() -> None:
    text = render_result("a" * MAX_CHARS + "b" * MAX_CHARS)
    head, num_cut, tail = re.fullmatch(r"(a+)\n\[\.\.\. (\d+) characters left out \.\.\.\]\n(b+)", text).groups()
    assert len(head) + int(num_cut) + len(tail) == 2 * MAX_CHARS
    assert len(text) <= MAX_CHARS
    assert cut("short") == ("short", 0)


HUGE = 1 << 25
WORDS = "x" * HUGE
DATA = WORDS.encode()
MANY = [WORDS[: 1 << 16]] * (HUGE >> 16)
NUMBERED = dict.fromkeys(range(1 << 19))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: WORDS, "characters left out"),
        (lambda: DATA, "bytes"),
        (lambda: memoryview(DATA), "bytes"),
        (lambda: MANY, "more left out"),
        (lambda: {"a": WORDS, "b": DATA}, "left out"),
        (lambda: {WORDS: WORDS}, "left out"),
        (lambda: {WORDS: DATA}, "left out"),
        (lambda: NUMBERED, "left out"),
        (lambda: Page(MANY), "left out"),
        (lambda: Secret(words=MANY), "left out"),
        (lambda: itertools.repeat([{}]), "more left out"),
        (lambda: itertools.repeat(""), "more left out"),
        (lambda: (MANY for _ in itertools.count()), "more left out"),
        (lambda: (None for _ in itertools.count()), "more left out"),
    ],
)
def test_a_huge_result_is_never_copied_whole(make: Callable[[], Any], told: str) -> None:
    """32 MiB, or without an end: what is made of it stays small, and says what is missing."""
    tracemalloc.start()
    try:
        text = render_result(make())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert told in text
    assert len(text) <= MAX_CHARS
    assert "hunter2" not in text
    assert peak < HUGE // 2


@pytest.mark.parametrize(
    ("make", "num_given"),
    [
        (lambda: WORDS, HUGE),
        (lambda: {WORDS: WORDS}, 2 * HUGE),
        (lambda: {"a": 1, "b": WORDS}, HUGE),
        (lambda: ["\n" + WORDS, WORDS[:1000]], HUGE),  # the second is one item more that is left out
    ],
)
def test_all_cuts_of_a_huge_result_are_counted(make: Callable[[], Any], num_given: int) -> None:
    text, num_cut = render_cut(make())
    assert num_cut == pytest.approx(num_given - text.count("x"), abs=50)
    text, num_cut = cut_to_tokens(text, 1000)
    assert num_cut == pytest.approx(num_given - text.count("x"), abs=50)


def test_of_bytes_that_are_cut_again_both_are_told() -> None:
    once, num_cut = render_cut(DATA)
    num_bytes = HUGE - once.count("x")
    assert (f"x\n[... {num_bytes} bytes left out ...]\nx" in once, num_cut) == (True, 0)
    twice, num_cut = cut_to_tokens(once, 1000)
    assert f"x\n[... {num_cut} characters left out ...]\n\n[... {num_bytes} bytes left out ...]\nx" in twice
    assert twice.count("x") + num_cut + num_bytes == HUGE
    assert len(twice) <= 2000


def test_words_like_those_of_a_cut_do_no_harm() -> None:
    for words in ("[... 0 characters left out ...]", f"\n[... {'9' * 5000} bytes left out ...]\n"):
        text, num_cut = cut(words * MAX_CHARS, MAX_CHARS)
        assert len(text) <= MAX_CHARS
        assert num_cut > 0


def test_what_is_left_of_a_huge_value_is_json_as_far_as_it_goes() -> None:
    text = render_result({"first": 1, "items": MANY, "last": 2})
    assert text.startswith('{"first":1,"items":["xxx')
    assert text.endswith('xxx","[... 496 more left out ...]"],"...":"[... 1 more left out ...]"}')


def test_a_value_within_itself_is_an_error() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises((ValueError, RecursionError)):
        render_result(ring)
