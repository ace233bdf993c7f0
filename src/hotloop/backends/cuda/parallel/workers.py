"""The processes of ranks 1 and up, as rank 0 sees them: started, told what to do, and ended.

    rank 0                                          rank 1 and up (`worker`)
    Workers(...)         ── RankInfo ──────────>    looks at its card
                         <────────────── Memory ──
    opened(...)          ── path, Plan, ... ───>    joins the group, loads its share
    mirrored(...)        ── method, arguments ──>   calls the same method of its own backend
    close()              ── None ──────────────>    leaves

Each has a socket of its own, at which nobody waits for an answer: what is computed is exchanged by the group. A rank
that fails says why and ends. None outlives rank 0: when the socket closes they end, whatever they are doing.
"""

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

import torch
import torch.distributed as dist

from hotloop.backends.cuda.failure import first_line
from hotloop.backends.cuda.memory.staging import Event
from hotloop.backends.cuda.parallel.ranks import TIMEOUT_S, SharedGroup, Transport
from hotloop.backends.cuda.quant.fp8 import E4M3
from hotloop.core.config import EngineConfig, LoadFormat
from hotloop.core.errors import DeviceLost

_POLL_S = 50e-6
_LEAVE_S = 10.0  # that a rank has to leave when it is told to
_REASON_S = 2.0  # in which a rank's end, and its reason, are heard of


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Who a rank is, and where it meets the others."""

    rank: int
    num_ranks: int
    device: str
    transport: Transport
    port: int

    def join(self, store: dist.Store) -> SharedGroup:
        return SharedGroup(self.rank, self.num_ranks, torch.device(self.device), self.transport, store)


@dataclass(frozen=True, slots=True)
class Plan:
    """How every rank computes."""

    config: EngineConfig
    dtype: torch.dtype = torch.bfloat16
    has_fp8_weights: bool = False
    has_graphs: bool = True
    keeps_fp8: bool = True
    """Whether matrices that the files hold in e4m3 stay so."""
    drops_windows: bool = False
    """Whether layers with a window have blocks of their own, and fewer."""

    @property
    def kv_dtype(self) -> torch.dtype:
        return E4M3 if self.config.kv_precision == "fp8" else self.dtype


class Memory(NamedTuple):
    """Of a card, before anything is loaded."""

    free_bytes: int
    total_bytes: int


def memory_of(device: str) -> Memory:
    return Memory(*torch.cuda.mem_get_info(device)) if torch.device(device).type == "cuda" else Memory(0, 0)


class _Process:
    """One rank's, and the socket it listens to."""

    def __init__(self, info: RankInfo) -> None:
        self._name = f"rank {info.rank} of {info.num_ranks}"
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hotloop.backends.cuda.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # what a terminal sends is for rank 0
            )
        self.connection = Connection(ours.detach())
        self.pid = self._process.pid
        self.tell(pickle.dumps(info))

    def tell(self, message: bytes) -> None:
        try:
            self.connection.send_bytes(message)
        except OSError:
            raise DeviceLost(f"{self._name} failed: its process has ended") from None

    def hear(self) -> Memory:
        """What it says at the start. Later on it speaks only to say why it fails."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            message = "its process has ended"
        if isinstance(message, Memory):
            return message
        raise DeviceLost(f"{self._name} failed: {message}")

    def end(self, within_s: float) -> None:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.connection.close()


class Workers:
    """All ranks but this one, which is rank 0. For one thread."""

    def __init__(self, num_ranks: int, device: str, transport: Transport) -> None:
        """Each rank has a card of its own if the device is `cuda`; any other device they share."""
        self.failure: DeviceLost | None = None
        """Why the ranks no longer compute together; a thread of its own finds out."""
        self._group: SharedGroup | None = None
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        devices = [f"cuda:{rank}" if device == "cuda" else device for rank in range(num_ranks)]
        self.rank_info = RankInfo(0, num_ranks, devices[0], transport, self._store.port)
        self._processes: list[_Process] = []
        self._is_closing = False
        self._watcher = threading.Thread(target=self._watch, name="hotloop-ranks", daemon=True)
        try:
            for rank in range(1, num_ranks):
                self._processes.append(_Process(replace(self.rank_info, rank=rank, device=devices[rank])))
            self.memory = [memory_of(device), *(process.hear() for process in self._processes)]
        except BaseException:
            self.failure = DeviceLost("the ranks could not be started")
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @contextmanager
    def opened(
        self, path: str, load_format: LoadFormat, kv_bytes: int, plan: Plan, *, has_flash: bool
    ) -> Iterator[SharedGroup]:
        """Have the others load their shares while that is done here. Gives the group whose rank 0 is here.

        `has_flash`: whether rank 0 found FlashAttention, and packs what it wants.
        """
        with self._together():
            self._tell_all((path, load_format, kv_bytes, plan, has_flash))
            self._watcher.start()
            self._group = self.rank_info.join(self._store)
            yield self._group

    @contextmanager
    def mirrored(self, method: str, *arguments: object) -> Iterator[None]:
        """Have the others do what is done here."""
        if self.failure:
            raise self.failure
        with self._together():
            self._tell_all((method, arguments))
            yield

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Whoever fails alone has lost the others: they wait for what never comes."""
        try:
            yield
        except Exception as error:
            if self._watcher.is_alive():
                self._watcher.join(_REASON_S)  # if another failed first, that is the reason
            self.failure = self.failure or DeviceLost(f"rank 0 failed: {first_line(error)}")
            raise self.failure from error

    def wait(self, event: Event) -> None:
        """For the device, but not for one that waits for a rank that is gone."""
        deadline = time.monotonic() + 2 * TIMEOUT_S
        while not (self.failure or event.query()):
            if time.monotonic() > deadline:
                self.failure = DeviceLost("the GPUs wait for each other")
            time.sleep(_POLL_S)
        if self.failure:
            raise self.failure

    def close(self) -> None:
        """The others leave, or are ended if they no longer listen."""
        self._is_closing = True
        if not self.failure:
            with suppress(DeviceLost):
                self._tell_all(None)
        elif self._group:
            self._group.abort()
        if self._group:
            self._group.close()
        for process in self._processes:
            process.end(0 if self.failure else _LEAVE_S)
        if self._watcher.is_alive():
            self._watcher.join()

    def _tell_all(self, message: object) -> None:
        data = pickle.dumps(message)
        for process in self._processes:
            process.tell(data)

    def _watch(self) -> None:
        """Wait for the first rank that ends."""
        speaking = wait([process.connection for process in self._processes])
        process = next(process for process in self._processes if process.connection in speaking)
        try:
            process.hear()
        except DeviceLost as error:
            if self._is_closing:
                return
            self.failure = self.failure or error
            if self._group:
                self._group.abort()
