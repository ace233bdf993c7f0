import math
import re
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from hotloop.agent.tools.tool import MAX_CHARS, cut, render_result


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
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
