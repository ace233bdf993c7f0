"""Those who wait for a place: the most urgent class first, and within it who came first. Bounded."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping

from hotloop.core.errors import Overloaded
from hotloop.core.request import Priority

Turn = asyncio.Future[None]


class WaitingRoom:
    """Whoever waits says what for; a place is offered to the first whom it serves."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._lines: Mapping[Priority, OrderedDict[Turn, Callable[[], bool]]] = {
            each: OrderedDict() for each in Priority
        }

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def num_waiting(self, priority: Priority) -> int:
        return len(self._lines[priority])

    def has_before(self, priority: Priority) -> bool:
        """Whether anybody as urgent waits already: a newcomer does not overtake."""
        return any(line for each, line in self._lines.items() if each <= priority)

    async def wait(self, priority: Priority, can_go: Callable[[], bool], *, is_back: bool = False) -> None:
        """Until there may be a place. Who finds it taken comes back, to the head of the line.

        Raises Overloaded where too many wait already.
        """
        if len(self) >= self._max_waiting and not is_back:
            raise Overloaded(f"{len(self)} requests are waiting for a replica already", retry_after_s=1.0)
        turn: Turn = asyncio.get_running_loop().create_future()
        line = self._lines[priority]
        line[turn] = can_go
        if is_back:
            line.move_to_end(turn, last=False)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came while this one was leaving: the next has it
                self.wake()
            raise
        finally:
            line.pop(turn, None)

    def wake(self) -> None:
        """There may be a place: the first whom it serves goes."""
        for line in self._lines.values():
            for turn, can_go in line.items():
                if can_go():
                    del line[turn]
                    turn.set_result(None)
                    return

    def wake_all(self) -> None:
        """Much may have changed: everybody whom it serves goes."""
        for line in self._lines.values():
            ready = [turn for turn, can_go in line.items() if can_go()]
            for turn in ready:
                del line[turn]
                turn.set_result(None)
