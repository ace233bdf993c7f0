"""Clients that ask for as much as they can, while others are served: these get the right answers, and the server stays
small. How long its health check takes meanwhile is printed: a time is no test.

FUZZ_INPUTS says how often each of them comes (`make test-fuzz`: many). In `make test` there is one of each, beside few
others.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fuzz.greedy import STORE_BYTES

NUM_ROUNDS = max(1, int(os.environ.get("FUZZ_INPUTS", "100")) // 100)
PAUSE_S = 0.3 if NUM_ROUNDS > 1 else 1.5  # between two questions of each, or the test is about how fast they ask
MAX_GROWN_BYTES = 300 << 20
HELLO = [{"role": "user", "content": "hello"}]
JSON = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def process(module: str, *args: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process, and the line it writes when it is ready."""
    command = (sys.executable, "-X", "faulthandler", "-m", f"tests.fuzz.{module}", *args)
    child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 24)
    assert child.stdout
    try:
        yield child, (await child.stdout.readline()).decode().strip()
    finally:
        if child.returncode is None:
            await child.communicate(b"")


def memory(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def reset_peak(pid: int) -> int:
    """The memory that it takes now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory(pid, "VmRSS")


def text_body(**fields: Any) -> bytes:
    return json.dumps({"messages": HELLO, "max_tokens": 1, **fields}, ensure_ascii=False).encode()


def greedy_bodies(number: int) -> dict[str, tuple[int, str, bytes, int]]:
    """How many of them come at once, where to, what it is, and what it is answered."""
    enum = {"enum": [f"{number} {i:012}" for i in range(9000)]}
    tops = {"logprobs": True, "top_logprobs": 20, "ignore_eos": True}
    return {
        "lists": (6, CHAT, b'{"unread": [' + b"[[]]," * 3_300_000 + b"[]]}", 400),
        "objects": (6, CHAT, b'{"unread": [' + b'{"a":1},' * 49_000 + b"1]}", 400),
        "token ids": (6, "/v1/completions", b'{"prompt": [' + b"1," * 290_000 + b"1]}", 400),
        "wide text": (6, CHAT, text_body(messages=[{"role": "user", "content": "a" * 16_000_000 + "👍"}]), 400),
        "too many log probabilities": (2, CHAT, text_body(n=128, max_tokens=400, **tops), 400),
        "many log probabilities": (2, CHAT, text_body(n=128, max_tokens=37, **tops), 200),
        "letters": (4, CHAT, text_body(user="a" * 2_000_000), 200),
        "an enum": (1, CHAT, text_body(guided_json=enum), 200),
        "long names": (2, CHAT, text_body(model="m" * 8_000_000, user="u" * 7_000_000), 404),
    }


@asynccontextmanager
async def half_sent(address: tuple[str, int], count: int) -> AsyncIterator[None]:
    """Bodies of 15 MB of which the last byte does not come."""
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 15000001\r\n\r\n"
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(*address)
        writers.append(writer)
        with suppress(ConnectionError):
            writer.write(head % CHAT.encode() + b" " * 15_000_000)
            await writer.drain()
    yield
    for writer in writers:
        writer.transport.abort()


async def ask_forever(url: httpx.URL, number: int, is_over: asyncio.Event, told: Counter[str]) -> None:
    """By a client of its own: one with many connections looks at all of them again and again."""
    body = {"messages": [{"role": "user", "content": f"agent {number}"}], "max_tokens": 8, "temperature": 0}
    async with httpx.AsyncClient(base_url=url, timeout=300, verify=False) as client:
        right = (await client.post(CHAT, json=body)).json()["choices"]
        while not is_over.is_set():
            try:
                answer = await client.post(CHAT, json=body)
            except httpx.TransportError as error:
                told[f"lost: {error!r}"] += 1
            else:
                told["right" if answer.status_code == 200 and answer.json()["choices"] == right else "wrong"] += 1
            await asyncio.sleep(PAUSE_S)


@pytest.mark.parametrize(("num_others", "max_at_once"), [(50, 60), (5, 1)], ids=["many", "few"])
@pytest.mark.long
async def test_greedy_clients_take_nothing_from_others(tmp_path: Path, num_others: int, max_at_once: int) -> None:
    async with process("greedy", str(tmp_path)) as (server, line):
        url = httpx.URL(line)
        address = url.host, url.port or 0
        told, is_over = Counter[str](), asyncio.Event()
        async with httpx.AsyncClient(base_url=url, timeout=300, verify=False) as client:
            others = [asyncio.create_task(ask_forever(url, i, is_over, told)) for i in range(num_others)]
            while told["right"] < 2 * num_others:
                assert not any(each.done() for each in others), "one could not go on"
                await asyncio.sleep(0.01)
            before = reset_peak(server.pid)
            async with process("probe", *map(str, address)) as (prober, _):
                statuses = await be_greedy(
                    client, address, max_at_once, lambda: memory(server.pid, "VmHWM") - before >> 20
                )
                taken_ms = sorted(json.loads((await prober.communicate(b""))[0]))
            is_over.set()
            await asyncio.gather(*others)
        grown = memory(server.pid, "VmHWM") - before
        p99_ms = taken_ms[len(taken_ms) * 99 // 100]
        store = sum(each.stat().st_size for each in os.scandir(tmp_path))
        print(f"\n{NUM_ROUNDS} rounds, {dict(told)} for others; statuses {dict(statuses)}")
        print(f"/health: {len(taken_ms)} times, p99 {p99_ms} ms, most {taken_ms[-1]} ms")
        print(f"memory +{grown / 2**20:.0f} MiB, the trace {store / 2**20:.0f} MiB")
        assert told.keys() == {"right"}, told
        assert grown <= MAX_GROWN_BYTES
        assert store <= 2 * STORE_BYTES


async def be_greedy(
    client: httpx.AsyncClient, address: tuple[str, int], max_at_once: int, peak_mib: Callable[[], int]
) -> Counter[tuple[str, int]]:
    statuses = Counter[tuple[str, int]]()
    for number in range(NUM_ROUNDS):
        for name, (count, path, body, expected) in greedy_bodies(number).items():
            sent = (client.post(path, content=body, headers=JSON) for _ in range(min(count, max_at_once)))
            for answer in await asyncio.gather(*sent):
                statuses[name, answer.status_code] += 1
                assert answer.status_code in (expected, 429, 503), f"{name}: {answer.text[:300]}"
            print(f"{name}: memory up to +{peak_mib()} MiB")
        async with half_sent(address, max_at_once):
            print(f"half-sent bodies: memory up to +{peak_mib()} MiB")
            assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})).status_code == 200
    return statuses
