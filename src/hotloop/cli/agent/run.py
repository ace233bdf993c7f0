"""`hotloop run`: an agent from a file, watched while it works.

The answer goes to stdout and everything else to stderr, so that `hotloop run agent.py QUESTION > answer` works. An
agent whose model is at the usual address of `hotloop serve`, where nobody is, gets a server of its own while it runs.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO
from urllib.parse import urlsplit

from cyclopts import Parameter

from hotloop.cli.agent.approval import Approval, choose_approval
from hotloop.cli.loading import lend_server
from hotloop.cli.settings import TRACED, ApiKey, JsonOutput, TraceFlags
from hotloop.cli.tracing import trace_flags, tracing
from hotloop.core.config import ServerConfig, TraceConfig
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.files import named_errors

if TYPE_CHECKING:
    from hotloop.agent.agent import Agent
    from hotloop.agent.conversation import Conversation
    from hotloop.agent.events import RunEnded
    from hotloop.cli.agent.file import AgentFile
    from hotloop.cli.agent.view import View

_MAX_KNOCK_S = 1.0


def run_agent(
    file: Annotated[Path, Parameter(help="Python file that defines an Agent.")],
    prompt: Annotated[
        str | None, Parameter(help="Prompt; if not given, stdin, or a conversation on a terminal.")
    ] = None,
    /,
    *,
    agent: Annotated[str | None, Parameter(help="Name of the agent, if the file defines several.")] = None,
    url: Annotated[str | None, Parameter(help="Address of the model, such as http://localhost:8700/v1.")] = None,
    model: Annotated[
        str | None, Parameter(help="Model name at --url; without --url, a model to load here, as for `serve`.")
    ] = None,
    api_key: ApiKey = None,
    approve: Annotated[
        Approval | None,
        Parameter(help="Tool calls that need approval: ask, run all, or run none."),
    ] = None,
    record: Annotated[Path | None, Parameter(help="Record all model and tool output to this file.")] = None,
    replay: Annotated[Path | None, Parameter(help="Replay such a file instead of calling the model and tools.")] = None,
    save: Annotated[Path | None, Parameter(help="Save the conversation to this file after every turn.")] = None,
    load: Annotated[Path | None, Parameter(name="--continue", help="Continue the conversation in this file.")] = None,
    resume: Annotated[
        str | None, Parameter(help="Resume this run, which was interrupted or waits; `hotloop runs list` lists them.")
    ] = None,
    trace: TraceFlags = TRACED,
    json: JsonOutput = False,
) -> None:
    """Run the agent defined in a file, showing turns, tools, cached tokens and cost."""
    from hotloop.agent.conversation import Conversation
    from hotloop.cli.agent.file import load_agent_file
    from hotloop.cli.agent.view import make_view, reserved_stdout

    if record and replay:
        raise ConfigError("--record and --replay cannot be used together")
    if resume and (prompt or load or save or record or replay):
        raise ConfigError("--resume takes no prompt, and no --continue, --save, --record or --replay")
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(reserved_stdout())
        found = load_agent_file(file, agent)
        conversation = Conversation()
        if load:
            with named_errors("read", load):
                conversation = Conversation.load(load)
        prompts = iter([""]) if resume else _prompts(prompt)
        view = make_view(out, is_json=json)
        if approval := choose_approval(approve, view, has_own=found.agent.settings.approve is not None):
            found.agent.settings = replace(found.agent.settings, approve=approval)
        settings, tracer = found.agent.settings, stack.enter_context(tracing(trace))
        found.agent.settings = replace(
            settings, name=settings.name or file.stem, tracer=settings.tracer or tracer, source=str(file.resolve())
        )
        if replay is None:
            stack.enter_context(_model(found.agent, url, model, api_key, trace))
        running = _taped(found.agent, record, replay)
        talk = Talk(replace(found, agent=running), conversation, view, Stopping(), save, None if json else out, resume)
        talk.run(prompts, is_interactive=prompt is None and resume is None and sys.stdin.isatty())


class Stopping:
    """SIGTERM ends a run as Ctrl-C does; where none is under way, the program, by an exception that closes all."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        signal.signal(signal.SIGTERM, self._stop)

    @contextlib.contextmanager
    def ending_this(self) -> Iterator[None]:
        self._task = asyncio.current_task()
        try:
            yield
        finally:
            self._task = None

    def _stop(self, *_: object) -> None:
        if self._task is None:
            sys.exit(128 + signal.SIGTERM)
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)


@dataclass(frozen=True, slots=True)
class Talk:
    """One prompt after another, in one conversation."""

    found: "AgentFile"
    conversation: "Conversation"
    view: "View"
    stopping: Stopping
    save: Path | None
    out: TextIO | None
    """Where answers are printed, if the view does not show them."""
    resume: str | None = None
    """The run that is gone on with."""

    def run(self, prompts: Iterator[str], *, is_interactive: bool) -> None:
        """Until there are no more. Alone with a person a run that fails, or is interrupted, is not the end."""
        agent = self.found.agent
        with asyncio.Runner() as runner:
            runner.run(agent.__aenter__())
            try:
                for prompt in prompts:
                    self._one(runner, prompt, is_interactive)
            finally:
                runner.run(agent.__aexit__())

    def _one(self, runner: asyncio.Runner, prompt: str, is_interactive: bool) -> None:
        from hotloop.cli.agent.view import print_output

        try:
            ended = runner.run(self._watch(prompt))
            if ended.error:
                raise ended.error
            if self.out:
                print_output(ended.output, self.out)
        except asyncio.CancelledError:
            sys.exit(128 + signal.SIGTERM)
        except KeyboardInterrupt:
            if not is_interactive:
                raise
        except HotloopError as error:
            if not is_interactive:
                raise
            print(f"hotloop: {error}", file=sys.stderr)
        finally:
            self._save()

    def _save(self) -> None:
        if self.save:
            with named_errors("write", self.save):
                self.conversation.save(self.save)

    def _save_turn(self) -> None:
        """A disk that is full ends no run: it may have room when the run is over."""
        try:
            self._save()
        except ConfigError as error:
            print(f"hotloop: {error}", file=sys.stderr)

    async def _watch(self, prompt: str) -> "RunEnded":
        from hotloop.agent.events import RunEnded, TurnFinished

        ended: RunEnded | None = None
        agent, context = self.found.agent, self.found.context
        if self.resume:
            events = agent.stream_resume(self.resume, context=context)
        else:
            events = agent.stream(prompt, conversation=self.conversation, context=context)
        with self.view, self.stopping.ending_this():
            try:
                async with contextlib.aclosing(events):
                    async for event in events:
                        self.view.push(event)
                        ended = event if isinstance(event, RunEnded) else None
                        if isinstance(event, TurnFinished):
                            self._save_turn()
            except asyncio.CancelledError:
                self.view.cancel()
                raise
        assert ended, "a run did not end"
        return ended


def _prompts(prompt: str | None) -> Iterator[str]:
    """What to ask: the argument, all of stdin, or line after line from a person."""
    if prompt is not None:
        yield prompt
    elif not sys.stdin.isatty():
        text = sys.stdin.read().strip()
        if not text:
            raise ConfigError("no prompt given: pass one as an argument or on stdin")
        yield text
    else:
        import readline  # noqa: F401 - gives `input` its line editing and history

        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                return
            if line:
                yield line


@contextlib.contextmanager
def _model(
    agent: "Agent[Any]", url: str | None, model: str | None, api_key: str | None, trace: TraceConfig
) -> Iterator[None]:
    """Give an agent the model it should have: the one asked for, its own, or where that is missing one of ours."""
    from hotloop.agent.open_model import open_model

    if url is not None:
        agent.settings = replace(agent.settings, model=open_model(f"{url}#{model}" if model else url, api_key=api_key))
        yield
    elif model is None and not _is_usual_and_absent(agent.address):
        if agent.address and api_key:
            agent.settings = replace(agent.settings, model=open_model(agent.address, api_key=api_key))
        yield
    else:
        with lend_server(None, model or urlsplit(agent.address).fragment, trace_flags(trace)) as address:
            agent.settings = replace(agent.settings, model=open_model(f"{address}/v1"))
            yield


def _is_usual_and_absent(address: str) -> bool:
    """Whether a model is at the address `hotloop serve` has by itself, and nobody is there."""
    usual = ServerConfig()
    parts = urlsplit(address)
    if parts.hostname not in ("localhost", usual.host) or parts.port != usual.port:
        return False
    try:
        socket.create_connection((usual.host, usual.port), _MAX_KNOCK_S).close()
    except OSError:
        return True
    return False


def _taped(agent: "Agent[Any]", to: Path | None, source: Path | None) -> "Agent[Any]":
    from hotloop.agent.record import record, replay

    if to:
        return record(agent, to)
    return replay(agent, source) if source else agent
