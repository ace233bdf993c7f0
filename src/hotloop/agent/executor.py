"""The pipeline from a model's words to tools, for programs that have a loop of their own.

    executor = ToolExecutor([weather, news])
    while True:
        turn = executor.watch(await client.chat.completions.create(..., tools=executor.chat_tools, stream=True))
        async for chunk in turn:
            ...
        if not turn.calls:
            break
        messages += await turn.chat_messages()

A call begins the moment its arguments are whole, beside the others and while the model still writes; read-only calls
that are alike are made once. A framework keeps its loop and its client: `hooks` watch the answers that the client
receives, and `function` is the tool that the framework calls, whose result is then on its way already, or here.
"""

import asyncio
import functools
import inspect
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, cast

import msgspec
import pydantic_core

from hotloop.agent.events import Event
from hotloop.agent.journal import RunJournal
from hotloop.agent.limits import Run, RunUsage
from hotloop.agent.model import Ask, PartialAnswer
from hotloop.agent.predict.history import call_key
from hotloop.agent.speculation import RunSpeculation, SpeculativeTools
from hotloop.agent.tools.consent import Approve, Consent
from hotloop.agent.tools.dispatch import Dispatcher, EarlyCall, Pending
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.tools.results import ResultCache
from hotloop.agent.tools.sub_agent import check_approver
from hotloop.agent.tools.tool import AgentTool, FromContext, FunctionTool, RunContext, ToolError
from hotloop.agent.wire import anthropic, openai
from hotloop.core.errors import ConfigError, HotloopError, RemoteError
from hotloop.core.message import Message, ToolCall
from hotloop.wire.arguments import read_arguments
from hotloop.wire.event import Event as WireEvent
from hotloop.wire.formats import FORMATS
from hotloop.wire.part import Api, Call, Text, ToolResult, Turn, text_of
from hotloop.wire.policy import Notes
from hotloop.wire.reader import Reader, name_call
from hotloop.wire.sse import EventReader, ServerEvent

_MAX_EARLY = 64  # calls that were begun for a framework and not asked for yet; the oldest are given up
_ANY_RESULT = 1 << 62  # results are cut to fit a model's window by whoever knows it


class ToolExecutor:
    """Runs tools for loops of others. Used in one event loop; `async with` stops what still runs at the end.

    `approve` is asked as by an `Agent`. `early` says what begins before a framework asks, where it has its own way to
    refuse calls: with "all" every call does.
    """

    def __init__(
        self,
        tools: Sequence[AgentTool | Callable[..., Any]],
        *,
        context: Sequence[Any] = (),
        approve: Approve | None = None,
        concurrency: int = 16,
        early: Literal["read_only", "all"] = "read_only",
        speculation: SpeculativeTools | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        each = [cast(AgentTool, tool) if hasattr(tool, "spec") else FunctionTool(tool) for tool in tools]
        self.tools: dict[str, AgentTool] = {tool.spec.name: tool for tool in each}
        if len(self.tools) < len(each):
            raise ConfigError("there are two tools of one name: give one of them another, tool(name=...)")
        run_context = RunContext([Run("executor", "executor"), *context])
        run_context.check(each)
        check_approver(each, approve)
        emit = on_event or (lambda event: None)
        self._is_all_early = early == "all"
        results = ResultCache().open("executor", "executor")
        self._speculate: Callable[[], RunSpeculation] | None = None
        if speculation:
            self._speculate = lambda: speculation.open(self.tools, run_context, emit, results)
        self._claims: list[Callable[[ToolCall], EarlyCall | None]] = []
        self._early: deque[tuple[str, Pending]] = deque()
        self._num_waiting = Counter["asyncio.Task[Outcome]"]()
        self._finishing: set[asyncio.Task[None]] = set()
        self._dispatcher = Dispatcher(
            self.tools,
            run_context,
            emit=emit,
            claim=self._claim,
            count=lambda: None,
            abort=lambda error: None,
            spent=RunUsage(),
            results=results,
            concurrency=concurrency,
            max_result_tokens=_any_result,
            journal=RunJournal(None, ""),
            called=_not_noted,
            consent=Consent(approve),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop what still runs."""
        await self._dispatcher.close()
        if self._finishing:
            await asyncio.wait(self._finishing)

    @property
    def chat_tools(self) -> list[dict[str, Any]]:
        """For `tools` of OpenAI's chat completions."""
        return [{"type": "function", "function": spec} for spec in self._specs("parameters")]

    @property
    def anthropic_tools(self) -> list[dict[str, Any]]:
        """For `tools` of Anthropic's messages."""
        return self._specs("input_schema")

    @property
    def response_tools(self) -> list[dict[str, Any]]:
        """For `tools` of OpenAI's responses."""
        return [{"type": "function", **spec} for spec in self._specs("parameters")]

    def _specs(self, schema: str) -> list[dict[str, Any]]:
        specs = [tool.spec for tool in self.tools.values()]
        return [{"name": each.name, "description": each.description, schema: dict(each.parameters)} for each in specs]

    def watch(self, stream: Any, *, messages: Sequence[Mapping[str, Any]] = ()) -> "ExecutedTurn":
        """A stream of the `openai` or `anthropic` client, as it is, and its calls as they become whole. Speculation
        needs the `messages` that were sent."""
        return ExecutedTurn(self, stream, messages)

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """The result of a call, as text: of the one that has begun already, if one has. Raises ToolError."""
        text = arguments if isinstance(arguments, str) else _dump(arguments)
        outcome = await self._wait_for(self._find(ToolCall("", name, text)).task)
        if outcome.is_error:
            raise ToolError(outcome.text.removeprefix("Error: "))
        return outcome.text

    def function(self, name: str) -> Callable[..., Any]:
        """A tool as an async function that looks like the one it was made of, for a framework to call."""
        tool = self.tools.get(name)
        if not isinstance(tool, FunctionTool):
            raise ConfigError(f"{name!r} is not a tool made from a function")
        signature = _visible_signature(tool.function)

        @functools.wraps(tool.function)
        async def call(*args: Any, **kwargs: Any) -> str:
            return await self.call(name, signature.bind(*args, **kwargs).arguments)

        del call.__wrapped__
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()} | {"return": str}
        return call

    @property
    def hooks(self) -> dict[str, list[Callable[..., Any]]]:
        """For `event_hooks` of an `httpx` client, such as `openai.DefaultAsyncHttpxClient(event_hooks=executor.hooks)`:
        calls in the answers that the client receives begin at once."""
        return {"response": [self._watch_response]}

    async def _watch_response(self, response: Any) -> None:
        formats = [api for api, each in FORMATS.items() if response.request.url.path.endswith(each.path[3:])]
        is_stream = "text/event-stream" in response.headers.get("content-type", "")
        if formats and is_stream and "content-encoding" not in response.headers:
            watched = _Watched(self, formats[0], _read_body(response.request), begin=self._begin_early)
            response.stream = _tee(response, watched)

    def start(self, call: ToolCall) -> Pending:
        return self._dispatcher.start(call, 0)

    def key_of(self, call: ToolCall) -> str:
        """Calls of one key are alike; what was left out counts as its default."""
        tool = self.tools.get(call.name)
        if isinstance(tool, FunctionTool):
            with suppress(ToolError):
                return f"{call.name} {_dump(tool.parse(call.arguments))}"
        return call_key(call.name, read_arguments(call.arguments)) or f"{call.name} {call.arguments}"

    def is_read_only(self, call: ToolCall) -> bool:
        return call.name in self.tools and self.tools[call.name].options.read_only

    def open_speculation(self) -> RunSpeculation | None:
        speculation = self._speculate() if self._speculate else None
        if speculation:
            self._claims.append(speculation.claim)
        return speculation

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that nobody waits for, but `close`."""
        task = asyncio.create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def close_speculation(self, speculation: RunSpeculation) -> None:
        if speculation.claim in self._claims:
            self._claims.remove(speculation.claim)
        await speculation.close()

    def _claim(self, call: ToolCall) -> EarlyCall | None:
        return next(filter(None, (claim(call) for claim in self._claims)), None)

    def _begin_early(self, call: ToolCall) -> Pending | None:
        if not (self._is_all_early or self.is_read_only(call)):
            return None
        key = self.key_of(call)
        alike = (pending for each, pending in self._early if each == key and self.is_read_only(call))
        pending = next(alike, None) or self.start(call)
        self._early.append((key, pending))
        while len(self._early) > _MAX_EARLY:
            self._drop(self._early.popleft()[1].task)
        return pending

    async def _wait_for(self, task: "asyncio.Task[Outcome]") -> Outcome:
        """Of a call that others wait for as well nobody is to be cancelled with who gives up."""
        self._num_waiting[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._num_waiting -= Counter([task])  # without those that are zero
            self._drop(task)

    def _drop(self, task: "asyncio.Task[Outcome]") -> None:
        """Stop a call that nobody wants."""
        if task not in self._num_waiting and all(pending.task is not task for _, pending in self._early):
            task.cancel()

    def _find(self, call: ToolCall) -> Pending:
        key = self.key_of(call)
        for each in self._early:
            if each[0] == key:
                self._early.remove(each)
                return each[1]
        return self.start(call)


class ExecutedTurn:
    """One answer of a model: iterate over it as over the client's stream, and then take what its calls gave."""

    def __init__(self, executor: ToolExecutor, stream: Any, messages: Sequence[Mapping[str, Any]]) -> None:
        self._executor = executor
        self._stream = stream
        self._messages = messages
        self._watched: _Watched | None = None
        self._pending: list[Pending] = []
        self._shared: dict[str, Pending] = {}

    @property
    def calls(self) -> list[ToolCall]:
        """Those that have begun."""
        return [pending.call for pending in self._pending]

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Raises what the stream raises."""
        try:
            async for chunk in self._stream:
                data = chunk.model_dump_json(exclude_unset=True) if hasattr(chunk, "model_dump_json") else _dump(chunk)
                if self._watched is None:
                    body = {"model": "", "messages": list(self._messages)}
                    self._watched = _Watched(self._executor, _api_of(chunk), body, begin=self._begin)
                self._watched.push(ServerEvent("", data.encode()))
                yield chunk
        finally:
            if self._watched:
                self._watched.close()

    async def results(self) -> list[Message]:
        """Of each call, in their order; a failed one says so in its content, which begins with `Error: `."""
        if self._pending:
            await asyncio.wait([pending.task for pending in self._pending])
        return [pending.message for pending in self._pending]

    async def chat_messages(self) -> list[dict[str, Any]]:
        """The answer and its results as the next request of OpenAI's chat completions has them."""
        return list(openai.render_ask(await self._said(), "", is_plain=True)["messages"])

    async def anthropic_messages(self) -> list[dict[str, Any]]:
        """The same for Anthropic's messages, which refuse an answer without a word or a call."""
        if self._message == Message("assistant"):
            return []
        return list(anthropic.render_ask(await self._said(), "", max_tokens=1)["messages"])

    async def _said(self) -> Ask:
        return Ask(messages=(self._message, *await self.results()))

    @property
    def _message(self) -> Message:
        return self._watched.answer.message if self._watched else Message("assistant")

    def _begin(self, call: ToolCall) -> Pending:
        executor = self._executor
        key = executor.key_of(call)
        same = self._shared.get(key) if executor.is_read_only(call) else None
        pending = Pending(call, same.task) if same else executor.start(call)
        self._shared.setdefault(key, pending)
        self._pending.append(pending)
        return pending


class _Watched:
    """An answer on its way to somebody else. What cannot be read of it begins no call, and is not our business."""

    def __init__(
        self, executor: ToolExecutor, api: Api, body: Mapping[str, Any], *, begin: Callable[[ToolCall], Pending | None]
    ) -> None:
        self.answer = PartialAnswer()
        self._called: list[Pending] = []
        self._executor = executor
        self._begin = begin
        self._reader: Reader | None = FORMATS[api].reader(name_call)
        self._messages = _read_messages(api, body)
        self._speculation = executor.open_speculation() if self._messages else None
        if self._speculation:
            self._speculation.begin_turn(self._messages, 0)

    def push(self, event: ServerEvent) -> None:
        if self._reader is None:
            return
        try:
            for each in self._reader.push(event):
                self._hear(each)
        except RemoteError:
            self._reader = None

    def close(self) -> None:
        """The answer is over. What ran ahead is dropped once those that were called have their results."""
        if self._reader and not self._reader.is_over:
            with suppress(RemoteError):
                for each in self._reader.finish():
                    self._hear(each)
        self._reader = None
        if self._speculation:
            self._executor.finish(self._end(self._speculation))
            self._speculation = None

    async def _end(self, speculation: RunSpeculation) -> None:
        if self._called:
            await asyncio.wait([pending.task for pending in self._called])
        speculation.end_turn([*self._messages, self.answer.message])
        await self._executor.close_speculation(speculation)

    def _hear(self, event: WireEvent) -> None:
        if self._speculation:
            self._speculation.hear(event, 0)
        if (call := self.answer.push(event)) and (pending := self._begin(call)):
            self._called.append(pending)


def _tee(response: Any, watched: _Watched) -> Any:
    """The body of a response as it comes, read along. Its class is that of whichever `httpx` the response is of."""
    kind: type = sys.modules[type(response).__module__.partition(".")[0]].AsyncByteStream
    stream, reader = response.stream, EventReader()

    async def read() -> AsyncIterator[bytes]:
        try:
            async for data in stream:
                with suppress(HotloopError):
                    for event in reader.push(data):
                        watched.push(event)
                yield data
        finally:
            watched.close()

    async def close(self: Any) -> None:
        watched.close()
        await stream.aclose()

    return type("WatchedStream", (kind,), {"__aiter__": lambda self: read(), "aclose": close})()


def _read_body(request: Any) -> Mapping[str, Any]:
    with suppress(Exception):  # a body that is streamed is not at hand
        body = msgspec.json.decode(request.content)
        return body if isinstance(body, dict) else {}
    return {}


def _read_messages(api: Api, body: Mapping[str, Any]) -> list[Message]:
    """What was asked, as far as it can be read; what is no message of ours is left out."""
    if not (body.get("messages") or body.get("input")):
        return []
    try:
        turns = FORMATS[api].parse({"model": "", "max_tokens": 1, **body}, Notes()).turns
    except HotloopError:
        return []
    return [message for turn in turns for message in _as_messages(turn)]


def _as_messages(turn: Turn) -> Iterable[Message]:
    results = [part for part in turn.parts if isinstance(part, ToolResult)]
    yield from (Message("tool", _texts(part.parts), tool_call_id=part.call_id) for part in results)
    calls = tuple(ToolCall(part.id, part.name, part.arguments) for part in turn.parts if isinstance(part, Call))
    text = _texts([part for part in turn.parts if isinstance(part, Text)])
    if text or calls:
        yield Message(turn.role, text, tool_calls=calls)


def _texts(parts: Iterable[Any]) -> str:
    return "".join(text_of(part) or "" for part in parts)


def _api_of(chunk: Any) -> Api:
    kind = chunk.get("type") if isinstance(chunk, Mapping) else getattr(chunk, "type", None)
    if not isinstance(kind, str):
        return "chat"
    return "responses" if kind.startswith("response.") else "messages"


def _visible_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Without what comes from the run's context."""
    signature = inspect.signature(function, eval_str=True)
    hidden = (FromContext,)
    visible = [
        each
        for each in signature.parameters.values()
        if not any(isinstance(extra, hidden) for extra in getattr(each.annotation, "__metadata__", ()))
    ]
    return signature.replace(parameters=visible, return_annotation=str)


def _dump(values: Any) -> str:
    return pydantic_core.to_json(values, by_alias=True, fallback=str).decode()


async def _any_result() -> int:
    return _ANY_RESULT


async def _not_noted(call: ToolCall, waits: bool) -> None:
    """There is no journal: the loop is somebody else's."""
