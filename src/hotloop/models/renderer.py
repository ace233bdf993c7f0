"""Templates rendered in a process of their own (see `rendering`), which is started when it is first needed.

It answers one at a time, to any thread. When a template takes too long its process ends, and the next gets a new one.
Knows nothing of chats.
"""

import atexit
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

MAX_CPU_S = 2.0
MAX_WALL_S = 20.0  # for a machine that is busy
MAX_BYTES = 1 << 30  # of addresses
RENDERED, FAILED = b"+", b"-"  # how an answer begins
_CHILD = "hotloop.models.rendering"
_SLOW = (-signal.SIGPROF, -signal.SIGALRM)


class TemplateFailed(Exception):
    """What the template, or the limits it runs under, say against it."""


class Renderer:
    """Renders any template, within limits. For any thread."""

    def __init__(
        self, *, max_cpu_s: float = MAX_CPU_S, max_wall_s: float = MAX_WALL_S, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_cpu_s = max_cpu_s
        self._limits = [str(max_cpu_s), str(max_wall_s), str(max_bytes)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process else None

    def compile(self, source: str) -> None:
        """Raises TemplateFailed unless the template can be compiled."""
        self.render(source, None)

    def render(self, source: str, variables: Mapping[str, Any] | None) -> str:
        """The template's text; it is only compiled without variables. Raises TemplateFailed."""
        try:
            task = pickle.dumps((source, variables))
        except (pickle.PicklingError, RecursionError, TypeError, AttributeError) as error:
            raise TemplateFailed(f"it cannot be given its variables: {error}") from None
        return self._ask(task)

    def close(self) -> None:
        """End the process; the next template starts another."""
        with self._lock:
            self._end()

    def _ask(self, task: bytes) -> str:
        with self._lock:
            connection = self._connect()
            try:
                connection.send_bytes(task)
                answer = connection.recv_bytes()
            except (EOFError, OSError):
                status = self._end()
                is_slow = status in _SLOW
                reason = f"it takes more than {self._max_cpu_s:g} s" if is_slow else f"its process ended with {status}"
                raise TemplateFailed(reason) from None
            except BaseException:  # a signal's: what comes next would be the answer to this
                self._end()
                raise
        text = str(memoryview(answer)[1:], "utf-8", "surrogatepass")
        if answer[:1] != RENDERED:
            raise TemplateFailed(text)
        return text

    def _connect(self) -> Connection:
        if self._process and self._process.poll() is not None:  # it was ended from outside
            self._end()
        if self._connection:
            return self._connection
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD, *self._limits],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection = Connection(ours.detach())
        return self._connection

    def _end(self) -> int | None:
        connection, process = self._connection, self._process
        self._connection = self._process = None
        if not (connection and process):
            return None
        connection.close()
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


_shared: Renderer


def shared_renderer() -> Renderer:
    """The one all templates of this process share."""
    return _shared


def _renew() -> None:
    global _shared
    _shared = Renderer()


_renew()
os.register_at_fork(after_in_child=_renew)  # two processes must not speak to one
atexit.register(lambda: shared_renderer().close())
