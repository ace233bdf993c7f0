"""Templates rendered in processes of their own (see `rendering`), a few at most, each started when it is first needed.

A process renders for one thread at a time, and is given nothing of the environment that Python does not need. One that
takes too much CPU time ends itself, one that does not answer is killed, one that was killed is replaced. Knows nothing
of chats.
"""

import atexit
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from hotloop.core.errors import Overloaded, Unavailable

LARGE_BYTES = 64 << 10
"""A larger task may take long enough to be felt. One process is kept from these, so that small ones need not wait."""
RENDERED, FAILED = b"+", b"-"  # how an answer begins
READY = b"!"  # what a process says first
_CHILD = "hotloop.models.rendering"
_KEPT_VARIABLES = ("PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")
"""Where Python and its libraries are; and the time zone, for templates that write the date."""


class TemplateFailed(Exception):
    """What the template, or the limits it runs under, say against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    max_cpu_s: float = 2.0
    max_wall_s: float = 10.0  # for a machine that is busy
    max_start_s: float = 60.0  # until Python runs and has its imports: from a cold disk that is longer than any task
    max_queue_s: float = 10.0
    max_bytes: int = 1 << 30  # of addresses
    num_processes: int = 4  # one of them is for small tasks


class Renderer:
    """Renders any template, within limits. For any thread."""

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self._limits = limits or RenderLimits()
        self._places = threading.BoundedSemaphore(self._limits.num_processes)
        self._large_places = threading.BoundedSemaphore(self._limits.num_processes - 1)
        self._idle: list[_Process] = []

    @property
    def idle_pids(self) -> list[int]:
        """Of the processes that have nothing to do."""
        return [process.pid for process in self._idle]

    def prepare(self) -> None:
        """Start a process, without waiting for it, unless there is one."""
        if not self._idle:
            self._idle.append(self._start())

    def compile(self, source: str) -> None:
        """Raises TemplateFailed unless the template can be compiled."""
        self.render(source, None)

    def render(self, source: str, variables: Mapping[str, Any] | None) -> str:
        """The template's text; it is only compiled without variables.

        Raises TemplateFailed; Overloaded where all processes stay busy, Unavailable where one does not answer.
        """
        try:
            task = pickle.dumps((source, variables))
        except (pickle.PicklingError, RecursionError, TypeError, AttributeError) as error:
            raise TemplateFailed(f"it cannot be given its variables: {error}") from None
        with ExitStack() as stack:
            if len(task) > LARGE_BYTES:
                stack.enter_context(self._place(self._large_places))
            stack.enter_context(self._place(self._places))
            answer = self._ask(task)
        text = str(memoryview(answer)[1:], "utf-8", "surrogatepass")
        if answer[:1] != RENDERED:
            raise TemplateFailed(text)
        return text

    def close(self) -> None:
        """End the processes that are idle; the next template starts another."""
        with suppress(IndexError):
            while True:
                self._idle.pop().end()

    @contextmanager
    def _place(self, places: threading.Semaphore) -> Iterator[None]:
        if not places.acquire(timeout=self._limits.max_queue_s):
            raise Overloaded("too many chat templates are being rendered")
        try:
            yield
        finally:
            places.release()

    def _ask(self, task: bytes) -> bytes:
        """A process that was ended may have been so by somebody else: a new one tries once more."""
        process, has_failed = self._take(), False
        while True:
            process.await_start()
            try:
                answer = process.ask(task)
            except BlockingIOError:
                process.kill()
                raise Unavailable(f"a chat template was not rendered within {self._limits.max_wall_s:g} s") from None
            except (EOFError, OSError):
                status = process.end()
                if status == -signal.SIGPROF:
                    raise TemplateFailed(f"it takes more than {self._limits.max_cpu_s:g} s") from None
                if has_failed:
                    raise TemplateFailed(f"its process ended with {status}") from None
                process, has_failed = self._start(), True
            except BaseException:  # a signal's: what comes next would be the answer to this
                process.kill()
                raise
            else:
                self._idle.append(process)
                return answer

    def _take(self) -> "_Process":
        with suppress(IndexError):  # none is idle
            while not (process := self._idle.pop()).is_alive:
                process.end()
            return process
        return self._start()

    def _start(self) -> "_Process":
        return _Process(self._limits)


class _Process:
    """One process and the connection to it. It has begun when it is asked: what a task may take is for the task."""

    def __init__(self, limits: RenderLimits) -> None:
        ours, theirs = socket.socketpair()
        _wait_at_most(ours, limits.max_start_s)
        self._limits, self._has_begun = limits, False
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD, str(limits.max_cpu_s), str(limits.max_bytes)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.pid = self._process.pid
        with ours:
            self._connection = Connection(os.dup(ours.fileno()))

    def await_start(self) -> None:
        """One that ends instead is found out by its first task."""
        if self._has_begun:
            return
        try:
            with suppress(EOFError, ConnectionError):
                self._connection.recv_bytes()
            with socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
                _wait_at_most(ours, self._limits.max_wall_s)
        except BlockingIOError:
            self.kill()
            within = f"within {self._limits.max_start_s:g} s"
            raise Unavailable(f"the process for chat templates did not start {within}") from None
        except BaseException:
            self.kill()
            raise
        self._has_begun = True

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, task: bytes) -> bytes:
        """Raises BlockingIOError where the process takes or sends nothing for too long, EOFError or OSError where it
        has ended."""
        self._connection.send_bytes(task)
        return self._connection.recv_bytes()

    def end(self) -> int:
        """Returns how it ended."""
        self._connection.close()
        try:
            return self._process.wait(1)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        self._connection.close()
        self._process.kill()
        return self._process.wait()


def _wait_at_most(connection: socket.socket, seconds: float) -> None:
    timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, direction, timeval)


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
