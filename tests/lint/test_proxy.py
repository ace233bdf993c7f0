"""A proxy in threads of its own, between a real client and a fake API."""

import json
import socket

import httpx
import pytest
from tests.bench.fake_server import FakeServer
from tests.lint.proxying import an_api, body_of, serving, watching
from tests.lint.stories import SYSTEM, user
from tests.loopback import openai_at

from hotloop.core.errors import ConfigError
from hotloop.lint.proxy import LintProxy


async def echo(scope, receive, send):
    """Gives back what came, in pieces, with headers that must survive."""
    body = await body_of(receive)
    seen = {"method": scope["method"], "path": scope["raw_path"].decode(), "query": scope["query_string"].decode()}
    seen["headers"] = [[name.decode(), value.decode()] for name, value in scope["headers"]]
    headers = [(b"x-twice", b"1"), (b"x-twice", b"2"), (b"content-type", b"application/x-odd")]
    await send(
        {"type": "http.response.start", "status": 418, "headers": [*headers, (b"x-seen", json.dumps(seen).encode())]}
    )
    for piece in (body[:3], body[3:], b"\x00\xff"):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def test_bytes_headers_and_addresses_pass_unchanged():
    with serving(an_api(echo)) as address, watching(address) as (url, _):
        body = b'{"a":  1, "b": "\xc3\xa4"}'
        answer = httpx.put(
            f"{url}/v1/odd%20path?x=1&x=%20", verify=False, content=body, headers={"x-mine": "yes", "user-agent": "me"}
        )
    seen = json.loads(answer.headers["x-seen"])
    assert (answer.status_code, answer.content) == (418, body + b"\x00\xff")
    assert answer.headers.get_list("x-twice") == ["1", "2"]
    assert (seen["method"], seen["path"], seen["query"]) == ("PUT", "/v1/odd%20path", "x=1&x=%20")
    named = dict(seen["headers"])
    assert (named["x-mine"], named["user-agent"], named["host"]) == ("yes", "me", address.removeprefix("http://"))


def raw_request(url: str, target: str, method: str = "GET") -> bytes:
    """What comes back for a request line that no HTTP client would write."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_no_target_reaches_another_host():
    """Only a path goes to the API: `*@host/` would make the API's own address a user name at another host."""
    reached = []

    async def other(scope, receive, send):
        reached.append(scope["path"])
        await echo(scope, receive, send)

    with serving(an_api(other)) as elsewhere, serving(an_api(echo)) as address, watching(address) as (url, _):
        other_host = elsewhere.removeprefix("http://")
        targets = ("*", f"*@{other_host}/v1/models", f"@{other_host}/", f"*.{other_host}/", "*/v1/models", "*?a=b")
        answers = {target: raw_request(url, target) for target in targets}
        answers["beyond ASCII"] = raw_request(url, "/v1/\xe4")
        whole = raw_request(url, f"http://{other_host}/v1/models")
        twice = raw_request(url, f"//{other_host}/v1/models")
    for target, answer in answers.items():
        assert b" 400 " in answer.splitlines()[0], (target, answer[:200])
    for answer in (whole, twice):
        status = answer.splitlines()[0]
        assert b" 400 " in status or b" 418 " in status, answer[:200]
    assert reached == []


def talk(client, num_turns):
    """A conversation whose system text has the time in it."""
    said = []
    for number in range(num_turns):
        said.append(user(f"Where is my parcel, please? I have waited for {number} weeks."))
        system = {"role": "system", "content": f"The time is 10:00:{number:02d}.\n{SYSTEM}"}
        chunks = client.chat.completions.create(
            model="fake", messages=[system, *said], stream=True, stream_options={"include_usage": True}
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        said.append({"role": "assistant", "content": text})
    return said


@pytest.mark.parametrize("address", ["{}", "{}/v1"])
def test_a_client_is_answered_and_its_prompts_are_linted(address):
    told = []
    with FakeServer() as server, watching(address.format(server.url), told.append) as (url, watch):
        client = openai_at(url, "sk-mine")
        said = talk(client, 3)
        client.models.list()
        client.close()
    assert said[-1]["content"] == " word0 word1 word2 word3 word4"
    assert server.api_keys == ["Bearer sk-mine"] * 3
    assert watch.num_requests == 3
    suspected, proven = told
    assert (suspected.rule, suspected.severity, proven.rule, proven.severity) == ("HL002", 1, "HL002", 2)
    assert watch.waste.num_recomputed > 2 * len(SYSTEM) / 8
    assert proven.waste.ms is not None


def test_an_api_that_is_not_there_is_said_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with watching(f"http://127.0.0.1:{port}") as (url, watch):
        answer = httpx.post(f"{url}/v1/chat/completions", verify=False, json={})
    assert answer.status_code == 502
    assert "cannot be reached" in answer.json()["error"]["message"]
    assert watch.num_requests == 0


def test_what_cannot_be_read_is_passed_on_all_the_same():
    with FakeServer(failing=frozenset({0})) as server, watching(server.url) as (url, watch):
        answer = httpx.post(
            f"{url}/v1/chat/completions", verify=False, json={"model": "fake", "messages": [user("Hi")]}
        )
    assert answer.status_code == 503
    assert watch.num_requests == 0


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="http://"):
        LintProxy("localhost:8000", lambda exchange: None)
