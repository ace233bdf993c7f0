"""Can a replica take the router down? One sends what no replica should, while many clients are served by good ones.

    trouble ──set──> hostile replica ──metrics, models, answers, KV events──> router <── 50 clients of good replicas
                                                                                └── /health, memory

Each trouble has its time. All the while `/health` is asked, the router's memory is read, and every answer to a client
of the good replicas is compared with what they say.
"""

import asyncio
import itertools
import json
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import zmq
from rich.table import Table

from benchmarks.route.answers import CHAT, MODEL, render_response
from benchmarks.route.load import Exchange, LeanClient, now, render_request
from hotloop.bench.report import figures_table, percentile
from hotloop.bench.serving import Child
from hotloop.wire.sse import EventReader

HOSTILE = "hostile"
MAX_HEALTH_P99_S, MAX_GROWTH_BYTES = 0.1, 300_000_000
TROUBLES = ("none", "metric", "page", "utf8", "nesting", "bytes", "returns", "escape", "replay", "events", "none again")

_NUM_CLIENTS, _PAUSE_S, _HEALTH_EVERY_S = 50, 0.25, 0.02
_SPAWN = multiprocessing.get_context("spawn")
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_DEEP = b"[" * 100_000 + b"]" * 100_000
_PAGES: dict[tuple[str, str], bytes] = {
    ("metric", "/metrics"): b"vllm:num_requests_running 1e999\n",
    ("page", "/metrics"): b'vllm:num_requests_running{a="}}}}}}"} 1e300\n' * 80_000,
    ("utf8", "/v1/models"): b'{"data":[{"id":"\xff\xfe"}]}',
    ("nesting", "/v1/models"): b'{"data":[{"id":"hostile"}],"x":' + _DEEP + b"}",
    ("nesting", "/metrics"): b"{" * 1_000_000,
    ("none", "/metrics"): b"vllm:num_requests_running 0\n",
    ("none", "/v1/models"): b'{"data":[{"id":"hostile"}]}',
}


def _in_bytes(event: bytes) -> bytes:
    return _STREAM + b"".join(b"1\r\n%c\r\n" % byte for byte in event) + b"0\r\n\r\n"


class HostileProcess(Child):
    """A replica that can be told in which way to be hostile."""

    url = kv_events = kv_replay = ""

    def start(self) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_run_hostile, args=(theirs,), name=HOSTILE, daemon=True)
        self._process.start()
        theirs.close()
        self.url, self.kv_events, self.kv_replay = self._pipe.recv()

    def be(self, trouble: str) -> None:
        self._pipe.send(trouble)

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def table(self) -> str:
        """Its part of a fleet's file."""
        keys = {"name": HOSTILE, "url": self.url, "kv_events": self.kv_events, "kv_replay": self.kv_replay}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        return f'[[replicas]]\nkind = "vllm"\n{lines}'


class _Hostile:
    def __init__(self) -> None:
        self.trouble = "none"
        event = b"data: " + b"x" * 300_000 + b"\n\n"
        self._answers = {
            "bytes": _in_bytes(event),
            "returns": _in_bytes(b"data: x\r\r" * 30_000),
            "escape": render_response(400, b'{"error":{"message":"a bad \\x escape"}}'),
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(self._answer(head.split(b" ")[1].decode()))
                await writer.drain()
        writer.close()

    def _answer(self, path: str) -> bytes:
        if path == CHAT:
            return self._answers.get(self.trouble) or render_response(200, b'{"id":"1","choices":[]}')
        page = _PAGES.get((self.trouble, path)) or _PAGES.get(("none", path), b"{}")
        return render_response(200, page)

    def publish(self, pub: zmq.Socket[bytes], replay: zmq.Socket[bytes]) -> None:
        """In a thread of its own, as fast as the router takes it: events with gaps, and replays without an end."""
        batches = itertools.cycle([_batch(i) for i in range(150)])
        numbers = itertools.count(1, 2)
        while True:
            if self.trouble == "events":
                pub.send_multipart([b"", next(numbers).to_bytes(8, "big"), next(batches)])
            elif self.trouble == "replay":
                pub.send_multipart([b"", next(numbers).to_bytes(8, "big"), next(batches)])
                if replay.poll(10):
                    asker, empty, _ = replay.recv_multipart()
                    self._replay_forever(replay, [asker, empty], batches)
            elif replay.poll(50):  # as a good one that has never said anything
                asker, empty, _ = replay.recv_multipart()
                replay.send_multipart([asker, empty, b"\xff" * 8, b""])

    def _replay_forever(self, replay: zmq.Socket[bytes], to: list[bytes], batches: Iterator[bytes]) -> None:
        for number in itertools.count():
            if self.trouble != "replay":
                return
            try:
                replay.send_multipart([*to, number.to_bytes(8, "big"), next(batches)], zmq.NOBLOCK)
            except zmq.Again:
                time.sleep(0.001)
            except zmq.ZMQError:  # nobody listens any more
                return


def _batch(number: int) -> bytes:
    """Some 200 kB: blocks of one token, whose names nobody else has."""
    hashes = [os.urandom(32) for _ in range(4000)]
    return msgspec.msgpack.encode([float(number), [["BlockStored", hashes, None, [number] * 4000, 1, None]]])


def _run_hostile(pipe: Connection) -> None:
    hostile, context = _Hostile(), zmq.Context()
    pub, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    replay.setsockopt(zmq.ROUTER_MANDATORY, 1)
    for each in (pub, replay):
        each.bind("tcp://127.0.0.1:0")
    threading.Thread(target=hostile.publish, args=(pub, replay), daemon=True).start()

    async def run() -> None:
        server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        pipe.send((url, *(each.getsockopt_string(zmq.LAST_ENDPOINT) for each in (pub, replay))))
        while True:
            hostile.trouble = (await asyncio.to_thread(pipe.recv)).split()[0]

    with suppress(EOFError):
        asyncio.run(run())


@dataclass(frozen=True, slots=True)
class TroubleReport:
    trouble: str
    num_asked: int
    health_p50_s: float
    health_p99_s: float
    health_max_s: float
    num_right: int
    num_wrong: int
    growth_bytes: int
    """The most memory the router had, less what it had at first."""


@dataclass(frozen=True, slots=True)
class HostileReport:
    troubles: tuple[TroubleReport, ...]
    health_p99_s: float
    """Over all troubles."""
    is_back: bool
    """Whether the hostile replica is up again once it is good."""

    @property
    def is_good(self) -> bool:
        num_wrong = sum(each.num_wrong for each in self.troubles)
        growth_bytes = max(each.growth_bytes for each in self.troubles)
        is_bounded = self.health_p99_s <= MAX_HEALTH_P99_S and growth_bytes <= MAX_GROWTH_BYTES
        return is_bounded and not num_wrong and self.is_back

    def to_json(self) -> dict[str, Any]:
        return {"is_good": self.is_good, **asdict(self)}

    def to_table(self) -> Table:
        table = figures_table("trouble", ("/health p50", "p99", "max", "memory", "right", "wrong"))
        for each in self.troubles:
            times = (each.health_p50_s, each.health_p99_s, each.health_max_s)
            cells = (*(f"{1e3 * s:.1f} ms" for s in times), f"{1e-6 * each.growth_bytes:+.0f} MB")
            table.add_row(each.trouble, *cells, f"{each.num_right:,}", f"{each.num_wrong:,}")
        table.caption = f"/health p99 over all {1e3 * self.health_p99_s:.1f} ms; back in the end: {self.is_back}"
        return table


async def measure_hostile(
    url: str,
    be: Callable[[str], None],
    read_rss: Callable[[], int],
    *,
    each_s: float,
    on_trouble: Callable[[], None] = lambda: None,
) -> HostileReport:
    client, before, reports, all_times = LeanClient(url, timeout_s=max(60.0, each_s)), read_rss(), [], []
    for trouble in TROUBLES:
        be(trouble)
        times, answers, sizes = await _watch(client, read_rss, trouble, each_s)
        all_times += times
        num_right = sum(map(_is_right, answers))
        reports.append(
            TroubleReport(
                trouble=trouble,
                num_asked=len(times),
                health_p50_s=percentile(times, 0.5),
                health_p99_s=percentile(times, 0.99),
                health_max_s=max(times),
                num_right=num_right,
                num_wrong=len(answers) - num_right,
                growth_bytes=max(sizes) - before,
            )
        )
        on_trouble()
    shown = client.ask(b"GET /router/replicas HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    await shown.ended
    states = {each["name"]: each["state"] for each in json.loads(shown.body)["replicas"]}
    await client.close()
    return HostileReport(tuple(reports), percentile(all_times, 0.99), states[HOSTILE] == "up")


async def _watch(
    client: LeanClient, read_rss: Callable[[], int], trouble: str, for_s: float
) -> tuple[list[float], list[Exchange], list[int]]:
    """How long `/health` took, what clients of the good replicas were answered, and the router's memory."""
    until, times, answers, sizes = now() + for_s, list[float](), list[Exchange](), [read_rss()]

    async def ask_on(number: int, model: str, pause_s: float) -> None:
        for turn in itertools.count():
            body = {
                "model": model,
                "stream": turn % 2 == 0,
                "messages": [{"role": "user", "content": f"{number} {turn}"}],
            }
            exchange = client.ask(render_request(CHAT, body))
            await exchange.ended
            if model == MODEL:
                answers.append(exchange)
            if now() > until:
                return
            await asyncio.sleep(pause_s)

    async def ask_health() -> None:
        while now() < until:
            exchange = client.ask(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            await exchange.ended
            times.append(exchange.ended_at - exchange.asked_at)
            sizes.append(read_rss())
            await asyncio.sleep(_HEALTH_EVERY_S)

    good = (ask_on(number, MODEL, _PAUSE_S) for number in range(_NUM_CLIENTS))
    bad = (ask_on(number, HOSTILE, 0.05) for number in range(2 if trouble in ("bytes", "returns", "escape") else 0))
    await asyncio.gather(ask_health(), *good, *bad)
    return times, answers, sizes


def _is_right(exchange: Exchange) -> bool:
    """Whether it is word for word what a stub says, to its end."""
    if not exchange.is_whole or exchange.status != 200:
        return False
    body, words = exchange.body, ""
    if exchange.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        events = [event.data for event in EventReader().push(body)]
        chunks = [json.loads(data) for data in events if data != b"[DONE]"]
        words = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk.get("choices"))
        return words == _WORDS and events[-1] == b"[DONE]"
    return bool(json.loads(body)["choices"][0]["message"]["content"] == _WORDS)


_WORDS = "".join(f" word{number}" for number in range(8))
