"""`hotloop serve --fronts 1`: HTTP in one process, the engine in another, and what happens when one of them is gone."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
from tests.cli.serving.test_signals import BODY, CHAT, Process, started, until

KEY = {"authorization": "Bearer old"}
GREEDY = {**BODY, "temperature": 0}
ENDLESS = {**BODY, "max_tokens": 900, "stream": True}


def children(pid: int) -> list[int]:
    """The processes that one has started and that have not ended."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def figure(http: httpx.AsyncClient, name: str) -> float:
    page = (await http.get("/metrics", headers=KEY)).text
    return float(next(line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(f"{name} ")))


async def begun(process: Process, http: httpx.AsyncClient) -> tuple[int, int]:
    """The engine's process and the front's, once both are ready."""
    await until(http, "/ready", 200)
    [front] = [child for child in children(process.process.pid) if b"serving.front" in command_of(child)]
    return process.process.pid, front


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_a_front_that_is_killed_is_replaced_and_leaves_nothing_in_the_engine(tmp_path: Path) -> None:
    async with (
        started("serve", "--fronts", "1", folder=tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY) as http,
    ):
        engine, front = await begun(process, http)
        first = (await http.post(CHAT, json=GREEDY)).json()["choices"]
        async with http.stream("POST", CHAT, json=ENDLESS) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            os.kill(front, signal.SIGKILL)
            try:
                rest = [line async for line in lines]
            except httpx.TransportError:
                rest = []
            assert "data: [DONE]" not in rest
        await process.until_logged("ended with code -9")
        async with asyncio.timeout(120):
            while True:
                try:
                    if (await http.get("/ready")).status_code == 200:
                        break
                except httpx.TransportError:
                    await asyncio.sleep(0.02)
        assert (await begun(process, http))[0] == engine
        async with asyncio.timeout(120):
            while await figure(http, "hotloop_kv_blocks_used"):  # noqa: ASYNC110  nobody tells when it is so
                await asyncio.sleep(0.02)
        assert (await http.post(CHAT, json=GREEDY)).json()["choices"] == first


async def test_a_front_whose_engine_is_killed_ends_its_answers_in_words_and_itself(tmp_path: Path) -> None:
    async with (
        started("serve", "--fronts", "1", folder=tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY) as http,
    ):
        engine, front = await begun(process, http)
        async with http.stream("POST", CHAT, json=ENDLESS) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            os.kill(engine, signal.SIGKILL)
            rest = "\n".join([line async for line in lines])
        assert "the engine's process has ended" in rest
        async with asyncio.timeout(120):
            while is_running(front):  # noqa: ASYNC110  nobody tells when it is so
                await asyncio.sleep(0.02)


async def test_a_stop_lets_what_runs_come_to_its_end(tmp_path: Path) -> None:
    async with (
        started("serve", "--fronts", "1", folder=tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY) as http,
    ):
        _, front = await begun(process, http)
        async with http.stream("POST", CHAT, json={**BODY, "stream": True}) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            process.process.terminate()
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert await asyncio.wait_for(process.process.wait(), 120) == 0
        assert not is_running(front)
