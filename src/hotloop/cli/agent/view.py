"""How a run is shown: live on a terminal, a line at a time elsewhere, or as JSON for a program.

All but the JSON goes to stderr. A view may be paused, so that a person can be asked something.
"""

import dataclasses
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live

from hotloop.agent import events
from hotloop.cli.agent.timeline import Timeline, describe_usage
from hotloop.cli.output import count, shorten

_REFRESH_PER_S = 10
_RESULT_CHARS = 100


class View(ABC):
    """Told every event of a run, in order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...  # noqa: B027 - most hold nothing of the terminal

    @abstractmethod
    def push(self, event: events.Event) -> None: ...

    @abstractmethod
    def cancel(self) -> None:
        """The run was given up."""

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context in which the terminal belongs to somebody else."""
        yield


@contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Stdout for the answer alone: what the agent's file, its tools and their child processes write goes to stderr.

    Not on a terminal, where both are the same, and where `input` edits lines only on the stdout it knows.
    """
    out = sys.stdout
    if out.isatty():
        yield out
        return
    out.flush()
    with ExitStack() as stack:
        if sys.stdout is sys.__stdout__:  # its descriptor is what child processes inherit
            ours = os.fdopen(os.dup(out.fileno()), "w", encoding=out.encoding, errors=out.errors)
            out = stack.enter_context(ours)
            os.dup2(2, 1)
            stack.callback(os.dup2, out.fileno(), 1)
        stack.enter_context(redirect_stdout(sys.stderr))
        yield out


def make_view(out: TextIO, *, is_json: bool) -> View:
    if is_json:
        return JsonView(out)
    console = Console(stderr=True, highlight=False, soft_wrap=False)
    return LiveView(console) if console.is_terminal else PlainView(console)


class LiveView(View):
    """The turn that is under way is drawn again and again; those that are over stay above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._timeline = Timeline()
        self._live = Live(
            get_renderable=lambda: self._timeline.turn or "",
            console=console,
            transient=True,
            refresh_per_second=_REFRESH_PER_S,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def push(self, event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            self._timeline = Timeline()
        if turn := self._timeline.push(event):
            self._console.print(turn)
        if isinstance(event, events.Compacted):
            self._console.print(_describe_compacted(event), style="dim")
        if isinstance(event, events.RunEnded) and event.end != "cancelled":
            self._console.print(self._timeline.describe_end(event.spent), style="dim")

    def cancel(self) -> None:
        if self._timeline.turn:
            self._console.print(self._timeline.turn)
        self._console.print(self._timeline.describe_cancelled())

    @contextmanager
    def pause(self) -> Iterator[None]:
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()


class PlainView(View):
    """A line for what begins and ends, with the seconds since the run began."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._timeline = Timeline()
        self._began_at = 0.0

    def push(self, event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            self._timeline, self._began_at = Timeline(), event.at
        turn = self._timeline.push(event)
        if line := describe_event(event):
            self._say(event.at, line)
        if isinstance(event, events.RunEnded) and event.end != "cancelled":
            self._say(event.at, self._timeline.describe_end(event.spent))
        if turn and turn.usage and turn.ended_at:
            self._say(turn.ended_at, f"turn {turn.number}: {describe_usage(turn.usage)}")

    def cancel(self) -> None:
        self._console.print(self._timeline.describe_cancelled(), markup=False, soft_wrap=True)

    def _say(self, at: float, text: str) -> None:
        self._console.print(f"{at - self._began_at:7.2f} s  {text}", markup=False, soft_wrap=True)


class JsonView(View):
    """An object a line: `event` says which, `at_s` when since the run began, the rest as `events.py` does."""

    def __init__(self, out: TextIO) -> None:
        self._began_at = 0.0
        self._out = out

    def push(self, event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            self._began_at = event.at
        self._print(render_event(event, self._began_at))

    def cancel(self) -> None:
        self._print({"event": "run_ended", "end": "cancelled"})

    def _print(self, event: dict[str, Any]) -> None:
        print(json.dumps(event, ensure_ascii=False, default=str), file=self._out, flush=True)


def render_event(event: events.Event, began_at: float) -> dict[str, Any]:
    """An event as JSON has it: snake case names, times since the run began, an error as its line."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    fields = {each.name: getattr(event, each.name) for each in dataclasses.fields(event)}
    at, _ = fields.pop("at"), fields.pop("at_s")
    if isinstance(event, events.RunEnded):
        fields["error"] = str(event.error) if event.error else None
        fields["output"] = plain(event.output)
        spent = event.spent
        fields["spent"] = {"num_turns": spent.num_turns, "time_s": spent.time_s, "money": spent.money}
        fields["usage"] = spent.usage
    if isinstance(event, events.SubAgentEvent):
        fields["inner"] = render_event(event.inner, began_at)
    if "usage" in fields:
        fields["usage"] = dataclasses.asdict(fields["usage"])
    return {"event": name, "at_s": round(at - began_at, 4), **fields}


def describe_event(event: events.Event) -> str:
    """A line for what begins and ends in a turn; empty for all else."""
    match event:
        case events.CallDispatched():
            speculative = " (speculative)" if event.was_speculative else ""
            return f"  {event.name} {shorten(event.arguments, _RESULT_CHARS)} began{speculative}"
        case events.CallSpeculated():
            return f"  {event.name} {shorten(event.arguments, _RESULT_CHARS)} began ahead of time"
        case events.CallFinished():
            return f"  {event.name} took {event.duration_s:.2f} s: {shorten(event.result, _RESULT_CHARS)}"
        case events.Compacted():
            return _describe_compacted(event)
        case events.SubAgentEvent():
            inner = describe_event(event.inner)
            return f"  {event.agent}:{inner}" if inner else ""
    return ""


def plain(value: Any) -> Any:
    import pydantic_core

    return pydantic_core.to_jsonable_python(value, fallback=str)


def print_output(output: Any, out: TextIO) -> None:
    text = output if isinstance(output, str) else json.dumps(plain(output), ensure_ascii=False, indent=2)
    print(text, file=out, flush=True)


def _describe_compacted(event: events.Compacted) -> str:
    before, after = event.num_messages_before, event.num_messages_after
    cut = f", {count(event.num_results_cut, 'result')} cut" if event.num_results_cut else ""
    return f"shortened from {before} messages to {after}{cut}: {describe_usage(event.usage)}"
