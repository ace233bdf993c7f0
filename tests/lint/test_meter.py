"""How many tokens a text has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.lint.meter import Meter, estimate
from hotloop.lint.parts import Part


@pytest.mark.parametrize(
    ("text", "num_tokens"),
    [
        ("", 0),
        ("The driver was here twice, and nobody was at home.", 13),
        ("internationalisation", 3),
        ('{"id": "4711-0815", "ok": true}', 17),
        ("客户想知道他的包裹在哪里", 11),
    ],
)
def test_words_digits_and_signs(text, num_tokens):
    assert estimate(text) == num_tokens


@given(st.text(), st.text())
def test_more_text_is_no_fewer_tokens(one, other):
    assert 0 <= estimate(one) <= estimate(f"{one}\n{other}") <= estimate(one) + estimate(other) + 2


def test_a_text_is_counted_once():
    counted = []
    meter = Meter(lambda text: counted.append(text) or len(text))
    assert [meter.count("abc") for _ in range(3)] == [3, 3, 3]
    assert counted == ["abc"]


def test_parts_add_up_to_what_was_reported():
    parts = [Part("text", str(i), "so " * i) for i in (100, 200)]
    scale = Meter().scale(parts, 616)
    assert scale.total(parts) == 616
    assert scale.tokens("so " * 100) == pytest.approx(200, abs=5)
