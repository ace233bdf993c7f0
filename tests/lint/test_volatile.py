"""What changes by itself, and what does not."""

import pytest

from hotloop.lint.cause import find_suspects, is_volatile, widen
from hotloop.lint.change import edit
from hotloop.lint.parts import Part


def kind(old, new):
    return is_volatile(edit(Part("system", "", old), Part("system", "", new), 0))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("It is 10:00:00.", "It is 10:00:37.", "a time"),
        ("Tuesday, June 9, 2026, 11:59 PM", "Wednesday, June 10, 2026, 12:01 AM", "a time"),
        ("2026-06-09T10:00:00Z", "2026-06-10T08:07:06Z", "a time"),
        ("at 1781000000 sharp", "at 1781000037 sharp", "a time"),
        ("session 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "session 6fa459ea-ee8a-3ca4-894e-db77e160355e", "an id"),
        ("cch=face1;", "cch=0bad2;", "an id"),
        ("[request dead]", "[request 1f00]", "an id"),
        ("turn 3 of 10", "turn 4 of 10", "a number"),
        ("step 9\nat 10:00", "step 10\nat 10:01", "a time"),
        ("Anna asks", "Bert asks", None),
        ("10 apples", "10 pears", None),
        ("The cart is empty", "The cart has 3 parcels", None),
    ],
)
def test_what_is_volatile(old, new, expected):
    text = "You are an agent.\n{}\nBe kind."
    assert kind(text.format(old), text.format(new)) == expected


def test_a_date_alone_is_no_suspect():
    assert find_suspects("It is 2024-05-15.") is None
    assert find_suspects("It is 2024-05-15 15:00:00 EST.") == (17, 25)


def test_whole_words_are_shown():
    assert widen("It is 10:00:37 now", 12, 14) == (6, 14)
