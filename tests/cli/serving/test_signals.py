"""`hotloop serve` and `hotloop route` as processes: what they do when they are told to reload or to stop."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from benchmarks.route.stub import Manner, Stub
from tests.chaos import write_model

from hotloop.http.listen import bind

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40, "ignore_eos": True}
SLOW = Manner(num_events=60, gap_s=0.02)
IN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Process:
    """A command of ours in a folder of its own; what it logs is in a file."""

    def __init__(self, folder: Path, *argv: str) -> None:
        self.folder = folder
        self.argv = argv
        self.log = folder / "log"

    @asynccontextmanager
    async def running(self, terminal: int = subprocess.DEVNULL) -> AsyncIterator["Process"]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HOTLOOP_")}
        environ["HOTLOOP_TRACE"] = "off"
        start = [] if terminal == subprocess.DEVNULL else ["-c", IN_TERMINAL]
        command = [sys.executable, *start, "-m", "hotloop", *self.argv]
        with self.log.open("wb") as log:
            self.process = process = await asyncio.create_subprocess_exec(
                *command, stdin=terminal, stdout=subprocess.PIPE, stderr=log, cwd=self.folder, env=environ
            )
        try:
            assert process.stdout
            async for line in process.stdout:
                if found := re.search(rb"is at (https?://\S+)", line):
                    self.url = found[1].decode()
                    break
            else:
                raise AssertionError(self.log.read_text())
            yield self
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def until_logged(self, words: str) -> str:
        """The line that says so."""
        async with asyncio.timeout(120):
            while True:
                for line in self.log.read_text().splitlines():
                    if words in line:
                        return line
                await asyncio.sleep(0.02)


async def until(http: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    async with asyncio.timeout(120):
        while (answer := await http.get(path)).status_code != status:  # noqa: ASYNC110  nobody tells when it is so
            await asyncio.sleep(0.02)
    return answer


@asynccontextmanager
async def started(command: str, *own: str, folder: Path, flags: Sequence[str] = ()) -> AsyncIterator[Process]:
    """With two keys in a file, and a model or replica that takes a while for an answer."""
    (folder / "keys").write_text("old\n")
    config = folder / "settings.toml"
    config.write_text("")
    flags = ("--config", str(config), "--port", "0", "--api-key-file", "keys", *own, *flags)
    if command == "serve":
        model = write_model(folder / "tiny")
        dummy = ("--load-format", "dummy", "--device", "cpu", "--kv-memory", "2MB", "--max-context", "1024")
        async with Process(folder, "serve", "--model", str(model), *dummy, *flags).running() as process:
            yield process
    else:
        stub = Stub("stub", SLOW)
        await stub.start()
        config.write_text(f"[[replicas]]\nurl = '{stub.url}'\n")
        async with Process(folder, "route", "--health-interval-s", "0.1", *flags).running() as process:
            yield process
        await stub.close()


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("serve --fronts 0", marks=pytest.mark.long),
        pytest.param("serve --fronts 1", marks=pytest.mark.long),
        "route",
    ],
)
async def test_a_hangup_reloads_and_a_stop_keeps_answering_until_the_delay_is_over(line: str, tmp_path: Path):
    async with started(*line.split(), folder=tmp_path, flags=("--drain-delay-s", "600")) as process:
        config = tmp_path / "settings.toml"
        as_it_was = config.read_text()
        old, new = ({"authorization": f"Bearer {key}"} for key in ("old", "new"))
        async with httpx.AsyncClient(base_url=process.url, timeout=120, verify=False) as http:
            await until(http, "/ready", 200)
            async with http.stream("POST", CHAT, json={**BODY, "stream": True}, headers=old) as stream:
                lines = stream.aiter_lines()
                await anext(lines)

                (tmp_path / "keys").write_text("new\n")
                process.process.send_signal(signal.SIGHUP)
                assert "changed: API keys" in await process.until_logged("reload:")
                assert (await http.get("/v1/models", headers=old)).status_code == 401
                assert (await http.get("/v1/models", headers=new)).status_code == 200

                (tmp_path / "keys").write_text("newer\n")
                config.write_text("log_level = 'debug'\nmax_runing = 3\n" + as_it_was)
                process.process.send_signal(signal.SIGHUP)
                line = await process.until_logged("reload refused")
                assert "nothing has changed" in line
                assert "there is no setting 'max_runing'" in line
                assert (await http.get("/v1/models", headers=new)).status_code == 200

                config.write_text("log_level = 'warning'\nmax_body = '1MiB'\n" + as_it_was)
                process.process.send_signal(signal.SIGHUP)
                line = await process.until_logged("needs a restart")
                assert "changed: API keys, log_level=warning; needs a restart: max_body" in line
                assert [line async for line in lines if line][-1] == "data: [DONE]"

                if process.argv[0] == "serve":
                    config.write_text(config.read_text() + "[classes]\nworkflow_wait_s = 1.5\n")
                    process.process.send_signal(signal.SIGHUP)
                    assert "changed: workflow_wait_s=1.5" in await process.until_logged("workflow_wait_s")
                    page = (await http.get("/metrics", headers={"authorization": "Bearer newer"})).text
                    assert 'hotloop_class_max_wait_seconds{priority="workflow"} 1.5' in page

            process.process.terminate()
            await until(http, "/ready", 503)
            assert (await http.get("/health")).status_code == 200
            answer = await http.post(CHAT, json=BODY, headers={"authorization": "Bearer newer"})
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"
            process.process.terminate()
            assert await asyncio.wait_for(process.process.wait(), 120) == 0


@pytest.mark.long
async def test_a_closed_terminal_stops_the_router_as_a_signal_does(tmp_path: Path):
    stub = Stub("stub")
    await stub.start()
    ours, theirs = pty.openpty()
    flags = ("--config", os.devnull, "--port", "0", "--replica", stub.url)
    process = Process(tmp_path, "route", *flags)
    async with process.running(theirs):
        os.close(theirs)
        os.close(ours)
        assert await asyncio.wait_for(process.process.wait(), 120) == 0
    assert "drained" in process.log.read_text()
    await stub.close()


@pytest.mark.parametrize("command", ["serve", "route"])
@pytest.mark.long
def test_a_taken_port_is_reported_before_anything_is_loaded(command: str, tmp_path: Path):
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = str(listener.getsockname()[1])
        what = ("--model", "no-such-model") if command == "serve" else ("--replica", "http://127.0.0.1:1")
        argv = [sys.executable, "-m", "hotloop", command, "--config", os.devnull, "--port", port, *what]
        ended = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"hotloop: cannot listen on 127.0.0.1:{port}: Address already in use\n"
