"""A replica without a model that fails when it is told to."""

import asyncio
from collections.abc import Sequence
from typing import Literal, NamedTuple

from benchmarks.route.answers import render_error, render_response
from benchmarks.route.stub import Connection, Manner, Stub

FaultKind = Literal["error", "hang", "slow", "half", "refuse"]


class Fault(NamedTuple):
    """What is wrong with it, and for how long.

    `error`: every completion is a 500; health is fine. `hang`: nothing is answered until it is over, health neither.
    `slow`: an answer begins `delay_s` late and takes as long again. `half`: half an answer, then the connection is
    closed. `refuse`: no connections; those with a request are left alone.
    """

    kind: FaultKind
    for_s: float
    delay_s: float = 1.0


class FaultyStub(Stub):
    """Faults are set by whoever holds it. Streams have two events or more, or there is no half of one."""

    def __init__(self, name: str, manner: Manner | None = None) -> None:
        super().__init__(name, manner)
        self.fault: Fault | None = None
        self._cure: asyncio.TimerHandle | None = None
        self._hung: list[tuple[Connection, str, bytes]] = []
        self._background: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        if self._cure:
            self._cure.cancel()
        await super().close()

    async def set_fault(self, fault: Fault | None) -> None:
        """In force until its time is over, another is set, or it is ended."""
        if self._cure:
            self._cure.cancel()
            self._cure = None
        self.fault = fault
        if fault:
            self._cure = asyncio.get_running_loop().call_later(fault.for_s, self.set_fault_soon, None)
        if fault and fault.kind == "refuse":
            self.refuse()
        elif not self.is_listening:
            await self.start(self.port)
        hung, self._hung = self._hung, []
        for connection, path, body in hung:
            if not connection.transport.is_closing():
                self.answer(connection, path, body)

    def set_fault_soon(self, fault: Fault | None) -> None:
        task = asyncio.get_running_loop().create_task(self.set_fault(fault))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def answer(self, connection: Connection, path: str, body: bytes) -> None:
        if self.fault and self.fault.kind == "hang":
            self._hung.append((connection, path, body))
        else:
            super().answer(connection, path, body)

    def say(self, connection: Connection, pieces: Sequence[bytes], gap_s: float) -> None:
        match self.fault:
            case Fault("error"):
                connection.send(render_response(500, render_error("told to fail")))
            case Fault("slow", _, delay_s):
                slowly = gap_s + delay_s / len(pieces)
                connection.later(delay_s, lambda: connection.send_pieces(pieces, slowly))
            case Fault("half"):
                connection.send_pieces(pieces[: len(pieces) // 2], gap_s, is_cut=True)
            case _:
                super().say(connection, pieces, gap_s)
