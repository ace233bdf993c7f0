"""By which names an API or a page without a key may be called."""

import pytest

from hotloop.http.page import is_own_name


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
        "desk.example",
        "Desk.Example:80",
        "server_1:8700",
        "desk.local",
        "hotloop.models.svc:8700",
        "hotloop.models.svc.cluster.local",
        "host.docker.internal",
        "app.localhost:3000",
    ],
)
def test_an_address_or_a_name_of_its_own(host: str):
    assert is_own_name(host, {"desk.example"})


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8700",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "desk.evil",
        "x.desk.example",
        "local.evil.example",
        "é",
        ".local",
        "[::1",
        "a b",
        "[x]",
    ],
)
def test_any_other_name(host: str):
    assert not is_own_name(host, {"desk.example"})


def test_no_name_is_not_its_own_where_it_has_none():
    assert not is_own_name("", {""})
