"""What a listener bears from whoever can reach it, keys or not: over real sockets, with limits small enough to meet."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hotloop.http.connection import ConnectionLimits
from hotloop.http.listen import bind
from hotloop.http.serving import ApiServer

LARGE = 50_000_000  # no socket buffers as much
HELLO = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    """Reads its body, unless it is told not to, and says how long that was, at once or after a while."""
    await asyncio.sleep(0.3 if scope["path"] == "/slow" else 0)
    num_bytes, more = 0, scope["path"] != "/unread"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        num_bytes += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"x" * LARGE if scope["path"] == "/large" else str(num_bytes).encode()
    status = 413 if scope["path"] == "/unread" else 200
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def listening(**limits: Any) -> Iterator[tuple[str, int]]:
    server = ApiServer(read_all, grace_s=1, limits=ConnectionLimits(**limits))
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.stop()
            thread.join(20)
            assert not thread.is_alive()


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of an answer, up to where it says it ends."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return 0, data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    [length] = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < length:
        body += connection.recv(65536)
    return int(head.split()[1]), body


def code(answer: tuple[int, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[1])["error"]["code"]


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=10)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


FLOODS = {
    "one long value": [b"GET / HTTP/1.1\r\nx: ", *[b"a" * 4096] * 64],
    "many lines": [b"GET / HTTP/1.1\r\n", *[b"x: " + b"a" * 1000 + b"\r\n"] * 64],
    "a long address": [b"GET /", *[b"a" * 4096] * 64],
    "at once, and whole": [b"GET / HTTP/1.1\r\nx: " + b"a" * 20_000 + b"\r\n\r\n"],
}


@pytest.mark.parametrize("name", FLOODS)
def test_headers_are_bounded(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with listening(max_header_bytes=16_000) as address, connect(address) as connection, caplog.at_level("WARNING"):
        for piece in FLOODS[name]:
            connection.sendall(piece)
        assert code(read_answer(connection)) == (431, "headers_too_large")
        assert is_closed(connection)
        assert "431 the request's headers are larger than 16000 bytes" in caplog.text


@pytest.mark.parametrize("data", [b"\0\n\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"])
def test_what_is_no_request_does_not_fill_the_log(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with listening() as address, caplog.at_level("WARNING"):
        for _ in range(20):
            with connect(address) as connection:
                connection.sendall(data)
                assert read_answer(connection)[0]
    assert len(caplog.records) <= 1


def test_a_flood_does_not_fill_the_memory_and_its_answer_can_be_read() -> None:
    with listening() as address, connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nx: ")
        for _ in range(256):
            connection.sendall(b"a" * 65536)
        assert code(read_answer(connection)) == (431, "headers_too_large")


def test_headers_within_the_limit_pass() -> None:
    with listening() as address, connect(address) as connection:
        for _ in range(3):
            connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 60_000 + b"\r\n\r\n")
            assert read_answer(connection) == (200, b"0")


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nhost", b"G", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_headers_that_never_end_are_not_waited_for(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with listening(head_timeout_s=0.2) as address, connect(address) as connection, caplog.at_level("WARNING"):
        connection.sendall(sent)
        assert code(read_answer(connection)) == (408, "request_timeout")
        assert is_closed(connection)
        assert "headers did not arrive within 0.2 s" in caplog.text


def test_a_byte_now_and_then_does_not_buy_more_time() -> None:
    with listening(head_timeout_s=0.4) as address, connect(address) as connection:
        began_at = time.monotonic()
        connection.settimeout(0.05)
        connection.sendall(b"GET / HTTP/1.1\r\nx: ")
        answer = b""
        while not answer and time.monotonic() - began_at < 8:
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                connection.sendall(b"a")
        assert answer.startswith(b"HTTP/1.1 408")


def test_who_says_nothing_is_hung_up_on() -> None:
    with listening(head_timeout_s=0.2) as address, connect(address) as connection:
        assert is_closed(connection)


def test_a_body_that_never_ends_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with listening(body_timeout_s=0.2) as address, connect(address) as connection, caplog.at_level("WARNING"):
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345")
        assert code(read_answer(connection)) == (408, "request_timeout")
        assert is_closed(connection)
        assert "body did not arrive within 0.2 s" in caplog.text


def test_what_arrives_in_time_is_answered_however_long_that_takes() -> None:
    with listening(head_timeout_s=0.2, body_timeout_s=0.2) as address, connect(address) as connection:
        for _ in range(3):
            connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345")
            connection.sendall(b"67890")
            assert read_answer(connection) == (200, b"10")
            time.sleep(0.3)  # between two requests there is no deadline of these


@pytest.mark.parametrize("options", [b"", b"connection: close\r\n"])
@pytest.mark.parametrize("size", [100, 50_000_000])
def test_an_answer_before_the_body_has_come_can_be_read(options: bytes, size: int) -> None:
    with listening(linger_s=5) as address, connect(address) as connection:
        head = b"POST /unread HTTP/1.1\r\nhost: x\r\n" + options + b"content-length: %d\r\n\r\n" % size
        connection.sendall(head)
        for _ in range(0, size, 1_000_000):
            connection.sendall(b"x" * min(size, 1_000_000))
        assert read_answer(connection) == (413, b"0")


def send_half(connection: socket.socket, size: int) -> None:
    connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (2 * size) + b"x" * size)


def test_bodies_that_are_held_back_make_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    with listening(max_body_bytes=1_000_000, linger_s=5) as address, caplog.at_level("WARNING"):
        held = [connect(address) for _ in range(6)]
        for i, connection in enumerate(held):
            send_half(connection, 400_000)
            if i >= 2:  # the third is one too many: the first must go
                assert code(read_answer(held[i - 2])) == (503, "too_many_bodies")
                assert is_closed(held[i - 2])
        with connect(address) as other:
            for size in (100, 600_000):
                other.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
                assert read_answer(other) == (200, str(size).encode())
        held[5].sendall(b"x" * 400_000)
        assert read_answer(held[5]) == (200, b"800000")
        assert "503 too many large requests are arriving" in caplog.text
        for connection in held:
            connection.close()


def test_bodies_that_have_come_make_room_by_themselves() -> None:
    with listening(max_body_bytes=1_000_000) as address, connect(address) as first, connect(address) as second:
        for _ in range(4):
            for connection in (first, second):
                connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 600000\r\n\r\n" + b"x" * 600_000)
                assert read_answer(connection) == (200, b"600000")


def test_bodies_that_arrive_share_their_memory_with_those_that_are_held() -> None:
    num_held_bytes = 0
    limits = {"max_body_bytes": 1_000_000, "num_held_bytes": lambda: num_held_bytes}
    with listening(**limits, linger_s=5) as address, connect(address) as first, connect(address) as second:
        send_half(first, 200_000)
        send_half(second, 200_000)
        num_held_bytes = 900_000
        second.sendall(b"x" * 100_000)
        assert code(read_answer(first)) == (503, "too_many_bodies")
        second.sendall(b"x" * 100_000)
        assert read_answer(second) == (200, b"400000")


def test_one_body_may_be_larger_than_all_of_them() -> None:
    with listening(max_body_bytes=100_000) as address, connect(address) as connection:
        send_half(connection, 400_000)
        connection.sendall(b"x" * 400_000)
        assert read_answer(connection) == (200, b"800000")


def test_a_client_that_reads_nothing_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    with listening(write_timeout_s=0.3) as address, connect(address) as connection, caplog.at_level("WARNING"):
        connection.sendall(HELLO.replace(b"/hello", b"/large"))
        deadline = time.monotonic() + 30
        while "the client read nothing for 0.3 s" not in caplog.text:
            assert time.monotonic() < deadline, "nobody was cut off"
            time.sleep(0.01)
        num_bytes = 0
        while not is_closed(connection):
            num_bytes += len(connection.recv(1 << 20))
        assert num_bytes < LARGE


def test_a_slow_reader_gets_all_of_its_answer() -> None:
    """Each look finds some of it gone, though the whole takes several times as long."""
    with listening(write_timeout_s=2.0) as address, connect(address) as connection:
        connection.sendall(HELLO.replace(b"/hello", b"/large"))
        num_bytes = 0
        while num_bytes < LARGE:
            time.sleep(0.03)
            piece = connection.recv(500_000)
            assert piece, "the connection was cut off"
            num_bytes += len(piece)


def test_there_are_only_so_many_connections(caplog: pytest.LogCaptureFixture) -> None:
    with listening(max_connections=3) as address, caplog.at_level("WARNING"):
        held = [connect(address) for _ in range(3)]
        for connection in held:
            connection.sendall(HELLO)
            assert read_answer(connection) == (200, b"0")
        for _ in range(5):
            with connect(address) as extra:
                assert code(read_answer(extra)) == (503, "too_many_connections")
        assert caplog.text.count("too many connections") == 1, "the log is not flooded"
        for connection in held:
            connection.sendall(HELLO)
            assert read_answer(connection) == (200, b"0")
            connection.close()
        deadline = time.monotonic() + 10
        status = 0
        while status != 200 and time.monotonic() < deadline:
            with connect(address) as again:
                again.sendall(HELLO)
                status = read_answer(again)[0]
        assert status == 200


def test_what_is_not_http_is_told_so_in_json() -> None:
    with listening() as address, connect(address) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert code(read_answer(connection)) == (400, "invalid_http")


def test_pipelined_requests_are_all_answered() -> None:
    with listening(head_timeout_s=0.2) as address, connect(address) as connection:
        connection.sendall(HELLO * 3)
        data = b""
        while data.count(b"HTTP/1.1 200") < 3:
            data += connection.recv(65536)


SLOW = HELLO.replace(b"/hello", b"/slow")
BAD_BODY = b"POST /hello HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnone\r\n"
BAD_URL = b"GET http://a:99999/ HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("bad", [b"\x16\x03\x01 hello\r\n\r\n", BAD_BODY, BAD_URL], ids=["head", "body", "url"])
@pytest.mark.parametrize("before", [b"", SLOW, SLOW + HELLO, SLOW + 2 * HELLO], ids=["none", "one", "two", "three"])
def test_a_request_that_is_refused_is_so_after_those_before_it_are_answered(
    caplog: pytest.LogCaptureFixture, before: bytes, bad: bytes
) -> None:
    with listening() as address, connect(address) as connection:
        connection.sendall(before + bad + HELLO)
        data = b""
        while piece := connection.recv(65536):
            data += piece
    statuses = [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200] * before.count(b"HTTP/1.1") + [400]
    assert b"invalid_http" in data
    assert "Traceback" not in caplog.text


def test_a_request_that_was_on_its_way_when_the_listener_closed_is_answered() -> None:
    server = ApiServer(read_all, grace_s=60, limits=ConnectionLimits(last_request_s=60))
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        idle, unused = connect(address := listener.getsockname()), connect(address)
        idle.sendall(HELLO)
        assert read_answer(idle) == (200, b"0")
        server.stop()
        while server.servers[0].is_serving():
            time.sleep(0.01)
        for connection in (idle, unused):
            connection.sendall(HELLO)
            assert read_answer(connection) == (200, b"0")
            assert connection.recv(1) == b"", "there will be no other answer"
            connection.close()
        thread.join(30)
        assert not thread.is_alive()


def test_a_stop_does_not_wait_for_half_a_request() -> None:
    with listening(linger_s=0.1) as address:
        connection = connect(address)
        connection.sendall(b"GET / HTTP/1.1\r\nho")
    connection.close()
