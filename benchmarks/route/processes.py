"""Stubs and routers as child processes: ready when their context is entered, gone when it is left."""

import asyncio
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import uvloop

from benchmarks.route.stub import Manner, Stub
from hotloop.bench.serving import Child, ChildServer
from hotloop.core.errors import RemoteError

_MAX_START_S = 30.0
_POLL_S = 0.02
_SPAWN = multiprocessing.get_context("spawn")


class StubProcess(Child):
    """A stub."""

    def __init__(self, name: str, manner: Manner | None = None) -> None:
        self.name = name
        self.url = ""
        self._manner = manner or Manner()
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int:
        assert self._process
        assert self._process.pid
        return self._process.pid

    def start(self) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        arguments = (self.name, self._manner, theirs)
        self._process = _SPAWN.Process(target=run_stub, args=arguments, name=self.name, daemon=True)
        self._process.start()
        theirs.close()
        try:
            port = self._pipe.recv()
        except EOFError:
            raise RemoteError(f"{self.name} did not start") from None
        self.url = f"http://127.0.0.1:{port}"

    def close(self) -> None:
        if self._process is None or self._pipe is None:
            return
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()
        self._process = None


def run_stub(name: str, manner: Manner, pipe: Connection) -> None:
    """The child's side: tells its port, and ends when whoever holds the other end of the pipe does."""

    async def run() -> None:
        stub = Stub(name, manner)
        await stub.start()
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), over.set)
        pipe.send(stub.port)
        await over.wait()
        await stub.close()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    uvloop.run(run())


class RouterProcess(ChildServer):
    """`hotloop route` in front of replicas, which can be others after a reload. `key` is an operator's, if any."""

    def __init__(self, urls: Iterable[str], flags: Sequence[str] = (), *, key: str = "") -> None:
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._folder = tempfile.TemporaryDirectory(prefix="hotloop-bench-")
        self._file = Path(self._folder.name) / "replicas.toml"
        self._file.write_text(render_fleet(urls), encoding="utf-8")
        super().__init__(flags, command="route", config=str(self._file))

    def start(self) -> None:
        super().start()
        self._wait_until_up()

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    def _wait_until_up(self) -> None:
        """It listens before it knows its replicas."""
        deadline = time.monotonic() + _MAX_START_S
        while time.monotonic() < deadline:
            replicas = httpx.get(f"{self.url}/router/replicas", headers=self._headers).json()["replicas"]
            if all(replica["state"] == "up" for replica in replicas):
                return
            time.sleep(_POLL_S)
        raise RemoteError(f"not all replicas are up: {replicas}")

    def reload(self, urls: Iterable[str]) -> None:
        """Returns at once; the router does not see half a file."""
        draft = self._file.with_suffix(".new")
        draft.write_text(render_fleet(urls), encoding="utf-8")
        draft.replace(self._file)
        os.kill(self.pid, signal.SIGHUP)


def render_fleet(urls: Iterable[str]) -> str:
    return "".join(f'[[replicas]]\nurl = "{url}"\n' for url in urls)


def cpu_s_of(pid: int) -> float:
    """Processor time a process has had, its own and the system's for it."""
    fields = _read_proc(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError as error:
        raise RemoteError(f"the system does not tell of process {pid}: {error.strerror}") from None
