"""The one table of failures."""

from collections.abc import Iterator

import pytest

from hotloop.core import errors
from hotloop.core.errors import HotloopError, Overloaded, PromptTooLong, Unavailable
from hotloop.server.errors import HttpError, error_response, kind_of, render_error


def tree(root: type[HotloopError]) -> Iterator[type[HotloopError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


@pytest.mark.parametrize("kind", [kind for kind in tree(HotloopError) if kind.__module__ == errors.__name__])
def test_every_error_of_the_tree_has_a_row(kind: type[HotloopError]) -> None:
    row = kind_of(kind.__new__(kind))
    assert 400 <= row.status < 600
    assert (row.type == "server_error") == (row.status >= 500)


def test_both_numbers_are_in_the_message() -> None:
    error = render_error(PromptTooLong(9000, 8192), "id")["error"]
    assert "9000" in error["message"]
    assert "8192" in error["message"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("wait_s", "header"), [(0.01, "1"), (1.2, "2"), (30, "30")])
def test_retry_after_is_whole_seconds(wait_s: float, header: str) -> None:
    assert error_response(Overloaded("busy", wait_s), "id").headers["retry-after"] == header


def test_a_status_without_a_row_still_has_a_shape() -> None:
    assert kind_of(HttpError(418, "tea")) == (418, "invalid_request_error", "http_error")


def test_what_a_part_of_the_server_failed_to_do_is_not_the_clients_fault() -> None:
    assert error_response(Unavailable("no answer"), "id").status_code == 503
    assert error_response(Unavailable("no answer"), "id", for_anthropic=True).status_code == 503
