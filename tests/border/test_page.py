"""By which names a page without a key may be called."""

import pytest

from hotloop.border.page import is_own_name


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8700",
        "127.0.0.1",
        "127.0.0.1:8700",
        "[::1]",
        "[::1]:8700",
        "10.1.2.3",
        "desk",
        "Desk:80",
    ],
)
def test_an_address_or_a_name_of_its_own(host: str):
    assert is_own_name(host, "desk")


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8700",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "desk.evil",
        "[::1",
        "a b",
        "[x]",
    ],
)
def test_any_other_name(host: str):
    assert not is_own_name(host, "desk")


def test_no_name_is_not_its_own_where_it_has_none():
    assert not is_own_name("", "")
