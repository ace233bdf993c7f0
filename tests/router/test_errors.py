"""The router's own failures have the shape, type and code that a server's have."""

import msgspec
import pytest

from hotloop.core.errors import EngineClosed, HotloopError, Overloaded, RequestError
from hotloop.http.keys import AccessDenied
from hotloop.router.errors import as_route_error, error_headers, render_error
from hotloop.server import errors as server

FAILURES = [
    Overloaded("too many", 3.0),
    RequestError("it is wrong", param="input"),
    AccessDenied(401, "invalid_api_key", "no key"),
    AccessDenied(403, "forbidden", "not this key"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("api", ["chat", "messages", "responses", None])
def test_a_failure_is_told_as_a_server_tells_it(failure, api):
    expected = server.error_response(failure, "req_1", for_anthropic=api == "messages")
    status, body = render_error(as_route_error(failure), api, "req_1")
    assert status == expected.status_code
    assert msgspec.json.decode(body) == msgspec.json.decode(bytes(expected.body))
    headers = {name.decode(): value.decode() for name, value in error_headers(as_route_error(failure))}
    assert headers == {name: expected.headers[name] for name in headers}
    assert {*expected.headers} - {"content-length"} == {*headers}


@pytest.mark.parametrize("failure", [HotloopError("it broke"), EngineClosed("it is gone")])
def test_what_a_replica_could_not_do_is_a_bad_gateway(failure):
    status, body = render_error(as_route_error(failure), "messages", "req_1")
    assert (status, msgspec.json.decode(body)["error"]["type"]) == (502, "api_error")
