"""KV goes from one server to another, and what another server does wrong costs no more than computing it."""

import hashlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect
from tests.backends.device import NullDevice
from tests.engine.tiny import TOKENIZER
from tests.server.serving import Serving, check_error, until

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.core.errors import ConfigError
from hotloop.core.request import KvSource
from hotloop.engine.engine import Engine
from hotloop.engine.offload.moves import PATH
from hotloop.http.keys import Key, Keys, Tenant, tenant_id
from hotloop.server.kv import SegmentsResponse, is_peer
from hotloop.server.service import Service
from hotloop.wire.kv import OFFER_PATH, SESSION_PATH

PEERS = ("http://127.0.0.1:*",)
PROMPT = "The quick brown fox jumps over the lazy dog. " * 30  # a token is a byte
NUM_MOVED = len(PROMPT) // 256 * 256


def serving(peers: tuple[str, ...] = (), **settings: Any) -> Serving:
    config = EngineConfig(debug_checks=True, drafts=False, kv_peers=peers)
    return Serving(ServerConfig(port=0, **settings), config)


def ask(server: Serving, source: str = "", prompt: str = PROMPT, **headers: str) -> tuple[str, int]:
    """The answer, and how much of the prompt was cached."""
    headers |= {"x-hotloop-kv-source": source} if source else {}
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    response = server.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    said = response.json()
    return said["choices"][0]["text"], said["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def pair() -> Iterator[tuple[Serving, Serving]]:
    """One that knows the prompt, and one that knows nothing."""
    with serving(PEERS) as old, serving(PEERS) as new:
        ask(old)
        yield old, new


def stats(server: Serving) -> Any:
    return server.engine.stats().moves


def test_a_prompt_that_another_server_has_is_not_computed_again(pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    alone = ask(old)
    assert ask(new, old.url) == (alone[0], NUM_MOVED)
    assert ask(new, old.url)[1] > NUM_MOVED, "now it is known here"
    assert stats(new).num_copies == 1
    assert stats(new).num_bytes_in == stats(old).num_bytes_out > 0
    new.engine._core.check()


def test_only_what_is_not_known_is_asked_for(pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    alone = ask(old)
    ask(new, prompt=PROMPT[:600])
    num_bytes = stats(old).num_bytes_out
    assert ask(new, old.url) == (alone[0], NUM_MOVED)
    assert stats(new).num_bytes_in == stats(old).num_bytes_out - num_bytes


def test_a_conversation_that_moves_is_gone_on_with(pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    longer = PROMPT + ask(old)[0] + " And then? " * 20
    with serving(PEERS) as fresh:
        alone = ask(fresh, prompt=longer)[0]
    assert ask(new, old.url, longer) == (alone, NUM_MOVED)


def test_nobody_else_is_asked(pair: tuple[Serving, Serving]) -> None:
    old, _ = pair
    with serving(("http://10.0.0.*:8700",)) as strict, serving() as plain:
        for server in (strict, plain):
            assert ask(server, old.url)[1] == 0
            assert stats(server).num_copies + stats(server).num_failed == 0
        check_error(plain.http.post(PATH, json={}), 404)


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("http://10.0.0.7:8700", True),
        ("http://10.0.0.7:8700/", True),
        ("http://10.0.0.7:8701", False),
        ("https://10.0.0.7:8700", False),
        ("http://10.0.0.7.evil.example:8700", False),
        ("http://evil.example@10.0.0.7:8700", False),
        ("http://10.0.0.7:8700@evil.example", False),
        ("http://10.0.0.x/y:8700", False),
        ("http://10.0.0.7:8700/other", False),
        ("http://10.0.0.7:8700\r\nx: y", False),
        ("", False),
    ],
)
def test_an_address_is_one_of_the_peers(url: str, is_one: bool) -> None:
    assert is_peer(url, ("http://10.0.0.*:8700", "http://kv.example:*")) is is_one


@pytest.mark.parametrize("address", ["10.0.0.7:8700", "ftp://a:1", "http://a:1/path", "http://", "http://a b:1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="kv_peers"):
        EngineConfig(kv_peers=(address,))


def asked(server: Serving, **changes: Any) -> dict[str, Any]:
    segments = server.engine.kv_segments
    assert segments
    tokens = server.engine.tokenizer.encode(PROMPT)
    return {"layout": segments.layout, "salt": "", "begin": 0, "tokens": list(tokens), **changes}


def test_what_is_sent_is_named_and_has_a_digest(pair: tuple[Serving, Serving]) -> None:
    old, _ = pair
    page = old.http.post(PATH, json=asked(old))
    segments = old.engine.kv_segments
    assert segments
    size = segments.num_bytes + 60
    assert len(page.content) == size * (NUM_MOVED // segments.num_tokens)
    assert page.content[28:60] == hashlib.sha256(page.content[60:size]).digest()
    rest = old.http.post(PATH, json=asked(old, begin=2)).content
    assert rest == page.content[2 * size :], "it goes on where one left off"


async def test_a_place_is_given_back_where_the_client_has_gone_before_a_piece_was_read() -> None:
    service = cast(Service, SimpleNamespace(num_kv_sent=1))

    async def no_pieces() -> AsyncIterator[bytes]:
        yield b""

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise OSError

    with suppress(ClientDisconnect):
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        await SegmentsResponse(service, b"", no_pieces())(scope, receive, send)
    assert service.num_kv_sent == 0


def test_kv_of_another_layout_is_refused(pair: tuple[Serving, Serving]) -> None:
    old, _ = pair
    check_error(old.http.post(PATH, json=asked(old, layout="another")), 409)
    check_error(old.http.post(PATH, json=asked(old, salt="another")), 404)
    check_error(old.http.post(PATH, json=asked(old, begin=-1)), 400)
    check_error(old.http.post(PATH, json=asked(old, tokens=[2**40])), 400)
    check_error(old.http.post(PATH, json=asked(old, begin=1 << 40)), 404)


def two_keys(folder: Path) -> str:
    file = folder / "keys"
    file.write_text("sk-one\nsk-two\nsk-root admin\n")
    return str(file)


def test_tenants_have_kv_of_their_own_and_may_not_ask(tmp_path: Path) -> None:
    file = two_keys(tmp_path)
    one, two = {"authorization": "Bearer sk-one"}, {"authorization": "Bearer sk-two"}
    with serving(PEERS, api_key_file=file) as old, serving(PEERS, api_key_file=file) as new:
        ask(old, **one)
        check_error(old.http.post(PATH, json=asked(old)), 401)
        check_error(old.http.post(PATH, json=asked(old), headers=one), 403)
        assert ask(new, old.url, **one)[1] == 0, "a tenant names no server"
        vouched = {"authorization": "Bearer sk-root"}
        tenants = [Tenant(tenant_id(key), is_apart=True) for key in (b"sk-one", b"sk-two")]
        theirs = [{**vouched, "x-hotloop-tenant": each.vouch(b"sk-root").decode()} for each in tenants]
        other = "Another prompt, " + PROMPT
        ask(old, prompt=other, **one)
        assert ask(new, old.url, other, **theirs[1])[1] == 0, "it is another tenant's"
        assert ask(new, old.url, other, **theirs[0])[1] == len(other) // 256 * 256
        assert ask(new, old.url, other, **two)[1] > 0, "its own, which it has computed"


def session_of(server: Serving, **headers: str) -> Any:
    return server.http.post(SESSION_PATH, json={"session": "s"}, headers=headers)


def test_what_a_session_goes_on_from_is_taken_before_it_comes(pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    ask(old, **{"x-session-id": "s"})
    told = session_of(old)
    assert told.status_code == 200
    offer = {**told.json(), "session": "s", "source": old.url}
    answer = new.http.post(OFFER_PATH, json=offer)
    assert answer.json() == {"tokens": NUM_MOVED}
    assert new.http.post(OFFER_PATH, json=offer).json() == {"tokens": NUM_MOVED}, "it is there already"
    assert stats(new).num_copies == 1
    assert ask(new, **{"x-session-id": "s"})[1] == NUM_MOVED
    check_error(old.http.post(SESSION_PATH, json={"session": "nobody's"}), 404)
    check_error(old.http.post(SESSION_PATH, json={}), 400)
    check_error(new.http.post(OFFER_PATH, json={**offer, "layout": "another"}), 409)
    check_error(new.http.post(OFFER_PATH, json={**offer, "tokens": [1] * 100_000}), 409)
    check_error(new.http.post(OFFER_PATH, json={**offer, "source": "http://10.0.0.1:80"}), 403)


def test_an_offer_of_a_server_that_is_gone_costs_nothing(pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    offer = {**asked(old), "session": "s", "source": "http://127.0.0.1:9"}
    assert new.http.post(OFFER_PATH, json=offer).json() == {"tokens": 0}
    assert ask(new)[1] == 0
    assert new.engine.stats().moves.num_failed == 1


def test_sessions_are_shown_and_offered_by_who_speaks_for_all_tenants(tmp_path: Path) -> None:
    file = two_keys(tmp_path)
    root = {"authorization": "Bearer sk-root"}
    one = {**root, "x-hotloop-tenant": Tenant(tenant_id(b"sk-one"), is_apart=True).vouch(b"sk-root").decode()}
    with serving(PEERS, api_key_file=file) as old:
        ask(old, **one, **{"x-session-id": "s"})
        check_error(session_of(old), 401)
        for headers in ({"authorization": "Bearer sk-one"}, one):
            check_error(session_of(old, **headers), 403)
            check_error(old.http.post(OFFER_PATH, json={}, headers=headers), 403)
        check_error(session_of(old, **root), 404)
        theirs = {"session": Tenant(tenant_id(b"sk-one"), is_apart=True).qualify("s")}
        assert old.http.post(SESSION_PATH, json=theirs, headers=root).status_code == 200


def test_states_of_hybrids_do_not_move_and_that_is_said() -> None:
    backend = NullDevice(num_states=8)
    with pytest.raises(ConfigError, match="recurrent states"):
        Engine(TOKENIZER, backend, EngineConfig(kv_peers=PEERS))


def test_the_key_that_servers_ask_each_other_with() -> None:
    assert Keys().own == ""
    assert Keys((Key(b"a"),)).own == "a"
    assert Keys((Key(b"a"), Key(b"b"))).own == ""
    assert Keys((Key(b"m", "metrics"), Key(b"a"), Key(b"root", "admin"))).own == "root"


Reply = Callable[[socket.socket, bytes], None]


@contextmanager
def peer(reply: Reply) -> Iterator[str]:
    """A server that answers so, whatever it is asked."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with ExitStack() as stack:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                stack.enter_context(connection)
                given = connection.recv(1 << 16)
                while b"\r\n\r\n" not in given:
                    given += connection.recv(1 << 16)
                try:
                    reply(connection, given)
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\nconnection: close\r\n\r\n"
BAD = {
    "nothing": lambda page: b"",
    "no HTTP": lambda page: b"\0" * 5000,
    "an error": lambda page: b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
    "elsewhere": lambda page: b"HTTP/1.1 302 Found\r\nlocation: http://10.9.9.9/\r\ncontent-length: 0\r\n\r\n",
    "another digest": lambda page: OK + page[:28] + b"\0" * 32 + page[60:],
    "other data": lambda page: OK + page[:60] + bytes(len(page) - 60),
    "another key": lambda page: OK + page[:8] + b"\0" * 20 + page[28:],
    "short": lambda page: OK + page[: len(page) // 20],
    "a length that is not kept": lambda page: OK[:-2] + b"content-length: 99999999\r\n\r\n" + page[:100],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BAD)
def test_what_a_hostile_server_sends_is_computed(name: str, pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    alone, page = ask(old)[0], old.http.post(PATH, json=asked(old)).content
    with peer(lambda connection, _: (connection.sendall(BAD[name](page)), connection.close())[1]) as url:
        assert ask(new, url) == (alone, 0)
    assert stats(new).num_failed == 1
    new.engine._core.check()


def test_what_came_before_a_connection_broke_is_not_asked_for_again(pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    alone, page = ask(old)[0], old.http.post(PATH, json=asked(old)).content
    size, begins = len(page) * 256 // NUM_MOVED, list[int]()

    def reply(connection: socket.socket, given: bytes) -> None:
        while b'"tokens":[' not in given:
            given += connection.recv(1 << 16)
        begins.append(int(given.partition(b'"begin":')[2].partition(b",")[0]))
        rest = page[begins[-1] * size :]
        head = OK[:-2] + b"content-length: %d\r\n\r\n" % len(rest)
        connection.sendall(head + (rest if begins[-1] else rest[: 2 * size + 100]))
        connection.close()

    with peer(reply) as url:
        assert ask(new, url) == (alone, NUM_MOVED)
    assert begins == [0, 2]


def test_a_body_that_never_ends_ends_with_what_was_asked_for(pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    alone, page = ask(old)[0], old.http.post(PATH, json=asked(old)).content
    has_left = threading.Event()

    def reply(connection: socket.socket, given: bytes) -> None:
        connection.sendall(OK + page)
        with suppress_errors(has_left):
            while True:
                connection.sendall(bytes(1 << 16))

    with peer(reply) as url:
        assert ask(new, url) == (alone, NUM_MOVED)
        assert has_left.wait(60)


@contextmanager
def suppress_errors(event: threading.Event) -> Iterator[None]:
    try:
        yield
    except OSError:
        event.set()


def test_a_server_that_says_nothing_is_not_waited_for(pair: tuple[Serving, Serving]) -> None:
    old, new = pair
    alone, is_over = ask(old)[0], threading.Event()

    def reply(connection: socket.socket, given: bytes) -> None:
        while not is_over.wait(0.05):
            connection.sendall(b"H")  # a byte of a head that never ends

    with peer(reply) as url:
        assert ask(new, url) == (alone, 0)
        is_over.set()
    assert stats(new).num_failed == 1


def test_a_server_that_says_nothing_is_not_waited_for_where_nothing_else_runs(pair: tuple[Serving, Serving]) -> None:
    _, new = pair
    is_over = threading.Event()

    def reply(connection: socket.socket, given: bytes) -> None:
        while not is_over.wait(0.05):
            connection.sendall(b"H")

    with peer(reply) as url:
        prompt = TOKENIZER.encode(PROMPT)
        try:
            assert new.engine.take_kv(KvSource(url, ""), "", prompt, "s").result(60) == 0
        finally:
            is_over.set()
    assert stats(new).num_failed == 1


def test_a_request_that_is_given_up_while_it_waits_leaves_nothing(pair: tuple[Serving, Serving]) -> None:
    _, new = pair
    is_asked, is_over = threading.Event(), threading.Event()

    def reply(connection: socket.socket, given: bytes) -> None:
        is_asked.set()
        is_over.wait(60)

    with peer(reply) as url:
        body = {"prompt": PROMPT, "max_tokens": 8, "stream": True}
        with new.http.stream("POST", "/v1/completions", json=body, headers={"x-hotloop-kv-source": url}) as response:
            assert response.status_code == 200
            assert is_asked.wait(60)
        until(lambda: new.engine.stats().num_finished.get("abort") == 1)
        is_over.set()
    assert ask(new)[1] == 0
    new.engine._core.check()
