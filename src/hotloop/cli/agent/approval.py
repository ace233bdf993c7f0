"""Who lets a call run that needs approval: the person at the terminal, or a standing answer."""

import asyncio
import os
import sys
import termios
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hotloop.agent.tools.consent import Approve
    from hotloop.cli.agent.view import View
    from hotloop.core.message import ToolCall

Approval = Literal["ask", "all", "none"]


def choose_approval(approval: Approval | None, view: "View", *, has_own: bool) -> "Approve | None":
    """What to put in place of an agent's own way; None leaves that. One that has none asks, if somebody is there."""
    if approval is None and has_own:
        return None
    if approval is None and not sys.stdin.isatty():
        return _answer_nobody

    return _Asking(view) if approval in (None, "ask") else answer_all(is_yes=approval == "all")


def answer_all(*, is_yes: bool) -> "Approve":
    async def answer(call: "ToolCall") -> bool:
        return is_yes and not _is_uncertain(call)

    return answer


async def _answer_nobody(call: "ToolCall") -> str:
    return "no terminal to ask on"


class _Asking:
    """Asks about one call at a time. Words that are neither yes nor no are told to the model."""

    def __init__(self, view: "View") -> None:
        self._view = view
        self._turn = asyncio.Lock()

    async def __call__(self, call: "ToolCall") -> bool | str:
        async with self._turn:
            with self._view.pause():
                _forget_typed()
                print(_show(f"{call.name} {call.arguments}"), file=sys.stderr)
                if _is_uncertain(call):
                    print("It was running when the run was cut off, and may have been done.", file=sys.stderr)
                print(
                    "Run this call? [y]es / [n]o / or type feedback for the model: ",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
                answer = await _read_line()
        match answer.lower():
            case "y" | "yes":
                return True
            case "" | "n" | "no":
                return False
        return answer


def _is_uncertain(call: "ToolCall") -> bool:
    """Whether it may have run before: no standing answer repeats such a call."""
    from hotloop.agent.journal import Uncertain

    return isinstance(call, Uncertain)


def _show(text: str) -> str:
    """What will run, and nothing else: a return or an escape, which could write over it, is shown as its code."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _forget_typed() -> None:
    """What was typed before the question is no answer to it."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


async def _read_line() -> str:
    """A line from the terminal, which can be given up waiting for; a thread in `input` could not."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()
    source = sys.stdin.fileno()

    def read() -> None:
        if not line.done():
            line.set_result(os.read(source, 4096))

    loop.add_reader(source, read)
    try:
        return (await line).decode("utf-8", "replace").strip()
    finally:
        loop.remove_reader(source)
