from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from hotloop.models.bounds import MAX_CHARS, join_bounded, printed_size, spend_chars, start_budget


@pytest.mark.parametrize("value", ["", "text", 12345, [], [[1, 2], "x"], {"a": (1, None)}, {"k": [1]}.items(), 0.5])
def test_the_size_is_never_less_than_the_text(value: Any) -> None:
    assert len(str(value)) <= printed_size(value) + 20


def test_what_is_held_twice_is_counted_twice_but_measured_once() -> None:
    value: list[Any] = [1]
    for _ in range(100):
        value = [value, value]
    assert printed_size(value) > 2**100


def test_a_namespace_is_not_printed() -> None:
    with pytest.raises(SecurityError, match="prints a namespace"):
        printed_size([Namespace()])


def test_the_budget_is_shared_and_begins_anew() -> None:
    start_budget()
    spend_chars(MAX_CHARS - 3)
    assert join_bounded(["a", "b"]) == "ab"
    with pytest.raises(SecurityError, match="makes more than"):
        join_bounded(["c", "d"])
    start_budget()
    assert join_bounded(["c", "d"]) == "cd"
