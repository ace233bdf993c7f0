"""`hotloop serve --fronts N`: HTTP in processes apart from the engine's, and what happens when one of them is gone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from tests.chaos import children_of, front_of, fronts_of
from tests.cli.serving.test_signals import BODY, CHAT, Process, started, until
from tests.http.test_tls import write_certificate

from hotloop.cli.serving.fronts import usual_fronts
from hotloop.core.config import ServerConfig
from hotloop.core.errors import ConfigError

KEY = {"authorization": "Bearer old"}
GREEDY = {**BODY, "temperature": 0}
ENDLESS = {**BODY, "max_tokens": 900, "stream": True}


async def figure(http: httpx.AsyncClient, name: str) -> float:
    page = (await http.get("/metrics", headers=KEY)).text
    return float(next(line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(f"{name} ")))


async def begun(process: Process, http: httpx.AsyncClient) -> tuple[int, int]:
    """The engine's process and the front's, once both are ready."""
    await until(http, "/ready", 200)
    [front] = [child for child in children_of(process.process.pid) if b"serving.front" in command_of(child)]
    return process.process.pid, front


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def all_begun(process: Process, num: int, gone: int = 0) -> list[int]:
    """So many of them, and none that is gone."""
    async with asyncio.timeout(120):
        while len(found := fronts_of(process.process.pid)) < num or gone in found:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.02)
    return found


async def test_a_front_that_is_killed_is_replaced_and_leaves_nothing_in_the_engine(tmp_path: Path) -> None:
    async with (
        started("serve", "--fronts", "1", "--precision", "exact", folder=tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY, verify=False) as http,
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
        await process.until_logged("exited with code -9")
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


@pytest.mark.long
async def test_a_front_whose_engine_is_killed_ends_its_answers_in_words_and_itself(tmp_path: Path) -> None:
    async with (
        started("serve", "--fronts", "1", folder=tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY, verify=False) as http,
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


@pytest.mark.long
async def test_a_stop_lets_what_runs_come_to_its_end(tmp_path: Path) -> None:
    async with (
        started("serve", "--fronts", "1", folder=tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY, verify=False) as http,
    ):
        _, front = await begun(process, http)
        async with http.stream("POST", CHAT, json={**BODY, "stream": True}) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            process.process.terminate()
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert await asyncio.wait_for(process.process.wait(), 120) == 0
        assert not is_running(front)


@pytest.mark.long
async def test_a_front_that_is_killed_takes_only_its_own_requests_with_it(tmp_path: Path) -> None:
    body = {**BODY, "max_tokens": 300, "stream": True}
    async with (
        started("serve", "--fronts", "3", folder=tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY, verify=False) as http,
        AsyncExitStack() as streams,
    ):
        fronts = await all_begun(process, 3)
        owners: dict[int, list[AsyncIterator[str]]] = {front: [] for front in fronts}
        while not sum(map(bool, owners.values())) > 1:
            stream = await streams.enter_async_context(http.stream("POST", CHAT, json=body))
            lines = stream.aiter_lines()
            await anext(lines)
            owners[front_of(stream, process.process.pid) or 0].append(lines)
        killed = next(front for front, ends in owners.items() if ends)
        os.kill(killed, signal.SIGKILL)
        for front, own in owners.items():
            for lines in own:
                try:
                    rest = [line async for line in lines]
                except httpx.TransportError:
                    rest = []
                assert ("data: [DONE]" in rest) == (front != killed)
        await process.until_logged("exited with code -9")
        await all_begun(process, 3, gone=killed)
        async with asyncio.timeout(120):
            while await figure(http, "hotloop_kv_blocks_used"):  # noqa: ASYNC110  nobody tells when it is so
                await asyncio.sleep(0.02)


@pytest.mark.long
async def test_a_conversation_goes_on_at_a_front_that_took_the_place_of_another(tmp_path: Path) -> None:
    async with started("serve", "--fronts", "2", folder=tmp_path) as process:
        fronts = await all_begun(process, 2)
        async with httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY, verify=False) as http:
            first = (await http.post("/v1/responses", json={"input": "hello", "max_output_tokens": 4})).json()
        for front in fronts:
            os.kill(front, signal.SIGKILL)
            await all_begun(process, 2, gone=front)
        async with httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY, verify=False) as http:
            more = {"input": "again", "max_output_tokens": 4, "previous_response_id": first["id"]}
            assert (await http.post("/v1/responses", json=more)).status_code == 200


@pytest.mark.long
async def test_settings_reach_every_front_and_those_that_start_later(tmp_path: Path) -> None:
    old, new = ({"authorization": f"Bearer {key}"} for key in ("old", "new"))
    async with started("serve", "--fronts", "2", folder=tmp_path) as process:
        fronts = await all_begun(process, 2)
        (tmp_path / "keys").write_text("new\n")
        process.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(120):
            while process.log.read_text().count("changed: API keys") < 2:  # noqa: ASYNC110  a file does not tell
                await asyncio.sleep(0.02)
        os.kill(fronts[0], signal.SIGKILL)
        await all_begun(process, 2, gone=fronts[0])
        seen = set[int | None]()
        while len(seen) < 2:
            async with httpx.AsyncClient(base_url=process.url, timeout=120, verify=False) as http:
                async with http.stream("GET", "/v1/models", headers=new) as answer:
                    assert answer.status_code == 200
                    seen.add(front_of(answer, process.process.pid))
                assert (await http.get("/v1/models", headers=old)).status_code == 401


@pytest.mark.long
async def test_a_stop_drains_all_fronts(tmp_path: Path) -> None:
    async with (
        started("serve", "--fronts", "3", folder=tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY, verify=False) as http,
        AsyncExitStack() as streams,
    ):
        fronts = await all_begun(process, 3)
        begun = []
        for _ in range(6):
            stream = await streams.enter_async_context(http.stream("POST", CHAT, json={**BODY, "stream": True}))
            lines = stream.aiter_lines()
            await anext(lines)
            begun.append(lines)
        for pid in (*fronts, process.process.pid):  # as systemd does, with all processes of a service
            os.kill(pid, signal.SIGTERM)
        for lines in begun:
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert await asyncio.wait_for(process.process.wait(), 120) == 0
        assert not any(map(is_running, fronts))


@pytest.mark.long
async def test_several_fronts_speak_https_with_one_certificate(tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path, "127.0.0.1")
    flags = ("--tls-cert", certificate.cert, "--tls-key", certificate.key)
    async with started("serve", "--fronts", "2", folder=tmp_path, flags=flags) as process:
        await all_begun(process, 2)
        seen = set[int | None]()
        while len(seen) < 2:
            async with (
                httpx.AsyncClient(base_url=process.url, timeout=120, headers=KEY, verify=False) as http,
                http.stream("POST", CHAT, json=GREEDY) as answer,
            ):
                seen.add(front_of(answer, process.process.pid))
                assert answer.status_code == 200


@pytest.mark.parametrize(
    ("num_cores", "max_running", "num_fronts"),
    [(3, 64, 0), (4, 64, 1), (4, 512, 1), (16, 256, 1), (16, 257, 2), (64, 1024, 4), (64, 16, 1)],
)
def test_there_is_a_front_for_each_256_streams_bounded_by_cores(
    num_cores: int, max_running: int, num_fronts: int
) -> None:
    assert usual_fronts(max_running, num_cores) == num_fronts


def test_a_number_of_fronts_that_cannot_be_is_refused() -> None:
    for given in ("two", "-1", "65", "²"):
        with pytest.raises(ConfigError, match="fronts"):
            ServerConfig(fronts=given)
