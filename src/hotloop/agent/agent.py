"""An agent: a model, its tools and its instructions. `run` it, `stream` it, or let it go several ways at once.

    agent = Agent("http://localhost:8700/v1", tools=[weather], instructions="Be brief.")
    print(agent.run_sync("Is it warmer in Paris or in Rome?").output)

What never changes comes first in every prompt (instructions, tools in one order), so that it stays cached.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from typing import Any, Generic, Literal, Self

from typing_extensions import TypeVar, Unpack

from hotloop.agent.checks import ContextFunction, as_functions
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation, Prompt, user_message
from hotloop.agent.events import Event, RunEnded
from hotloop.agent.fallback import FallbackModel
from hotloop.agent.limits import Limits, Run
from hotloop.agent.model import Model
from hotloop.agent.open_model import open_model
from hotloop.agent.past import Past, decide, give_back, take_over
from hotloop.agent.plan.run import PlannedRun
from hotloop.agent.run import RunLoop
from hotloop.agent.run_stream import Result, RunOptions, RunStream, Steered
from hotloop.agent.settings import Equipment, RunSettings
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.tools.consent import Approve, OnUncertain
from hotloop.agent.tools.dispatch import Caller
from hotloop.agent.tools.handoff import Handoff
from hotloop.agent.tools.results import ResultCache
from hotloop.agent.tools.source import OpenTools, ToolSource
from hotloop.agent.tools.sub_agent import SubAgent, approvals_of
from hotloop.agent.tools.tool import FINAL_ANSWER, AgentTool, FinalAnswer, FunctionTool, RunContext, ToolOptions
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.message import Message
from hotloop.core.prices import Prices
from hotloop.core.request import Priority
from hotloop.trace.default import default_tracer
from hotloop.trace.journal import Journal
from hotloop.trace.tracer import Tracer
from hotloop.wire.hints import parse_class

T = TypeVar("T", default=str)

Approvals = Mapping[str, bool | str] | Mapping[tuple[str, str], bool | str]
"""What was decided about calls, by id, or by run and id."""

_NO_RUN = Run("", "")
"""Stands for the run that there will be."""


class Agent(Generic[T]):
    """Of several models each is there for when those before it fail. `output` is the type of the final answer: text, or
    anything pydantic can check. With `tool_choice` "required" a run begins with a call, which an answer that has a type
    is itself; after that it is the model's choice again. `max_result_share` is how much of the model's window one
    result of a tool may take: a longer one is cut.

    `priority` is the class of its turns, which servers that know classes go by: if not given, interactive, workflow for
    a sub-agent, and background for a `task` that nobody waits for (`summary`, `title`, `evaluation`, `batch`). By its
    `task` a router chooses the model.
    """

    def __init__(
        self,
        model: Model | str | Sequence[Model | str],
        tools: Sequence[AgentTool | ToolSource | Callable[..., Any]] = (),
        instructions: str | Callable[..., Any] = "",
        *,
        output: type[T] = str,  # type: ignore[assignment]
        validators: Sequence[Callable[..., Any]] = (),
        input_guards: Sequence[Callable[..., Any]] = (),
        output_guards: Sequence[Callable[..., Any]] = (),
        limits: Limits | None = None,
        prices: Prices | None = None,
        approve: Approve | None = None,
        on_uncertain: OnUncertain | None = None,
        speculation: SpeculativeTools | None = None,
        results: ResultCache | None = None,
        compaction: Compaction | None = None,
        max_result_share: float = 0.25,
        can_prefill_ahead: bool = True,
        tool_choice: Literal["auto", "required"] = "auto",
        max_tokens: int | None = None,
        temperature: float | None = None,
        priority: Priority | str | None = None,
        task: str = "",
        extra: Mapping[str, Any] | None = None,
        name: str = "",
        tracer: Tracer | None = None,
    ) -> None:
        if not 0 < max_result_share <= 1:
            raise ConfigError(f"max_result_share must be above 0 and at most 1, not {max_result_share}")
        self.instructions = instructions
        if not isinstance(instructions, str):
            ContextFunction(instructions, 0, "the instructions")
        self.output = output
        self.address = model if isinstance(model, str) else ""
        self.tools = [_as_tool(each) for each in tools]
        self._kept: OpenTools | None = None
        self._check_names([tool for tool in self.tools if not isinstance(tool, ToolSource)])
        self.settings = RunSettings(
            model=_as_model(model),
            limits=limits or Limits(),
            prices=prices or Prices(),
            approve=approve,
            on_uncertain=on_uncertain,
            validators=as_functions(validators, "the validator"),
            input_guards=as_functions(input_guards, "the guard"),
            output_guards=as_functions(output_guards, "the guard"),
            speculation=speculation,
            results=results or ResultCache(),
            compaction=compaction,
            max_result_share=max_result_share,
            can_prefill_ahead=can_prefill_ahead,
            tool_choice=tool_choice,
            max_tokens=max_tokens,
            temperature=temperature,
            priority=_as_class(priority),
            task=task,
            extra=dict(extra or {}),
            name=name,
            tracer=tracer,
        )

    async def run(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Result[T]:
        """The final answer. Raises what ended the run before there was one; being cancelled stops everything."""
        return await self.stream(prompt, **options).result()

    def run_sync(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Result[T]:
        """`run`, for programs that do not await, and in notebooks, whose loop runs already: then in a thread."""

        async def run() -> Result[T]:
            async with self:
                return await self.run(prompt, **options)

        if not _has_running_loop():
            return asyncio.run(run())
        return _run_in_thread(run())

    def stream(self, prompt: Prompt, **options: Unpack[RunOptions]) -> RunStream[T]:
        """The run as it happens. Closing the iterator cancels the run."""
        return RunStream(partial(self._stream, RunLoop, prompt, options))

    async def plan(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Result[T]:
        """`run`, beginning with a plan: the model writes its calls all at once, referring to each other's results.

        Each runs as soon as it is written and what it refers to is there; then the model answers. After a plan that
        cannot be followed the run goes on as any other, and a `PlanAbandoned` says why.
        """
        return await self.stream_plan(prompt, **options).result()

    def stream_plan(self, prompt: Prompt, **options: Unpack[RunOptions]) -> RunStream[T]:
        """`plan` as it happens. Closing the iterator cancels the run."""
        return RunStream(partial(self._stream, PlannedRun, prompt, options))

    async def resume(
        self, run_id: str, *, context: Sequence[Any] = (), approvals: Approvals | None = None
    ) -> Result[T]:
        """Go on with a run that was interrupted, that waits or was paused, or that failed, from its journal: here or on
        another day.

        `approvals` decides on calls it waits for, by id, or by (run, id) where calls of two sub-agents have one id.
        Raises RunTaken if another process runs it.
        """
        return await self.stream_resume(run_id, context=context, approvals=approvals).result()

    def stream_resume(
        self, run_id: str, *, context: Sequence[Any] = (), approvals: Approvals | None = None
    ) -> RunStream[T]:
        """`resume` as it happens. Closing the iterator cancels the run, which can be resumed once more."""
        return RunStream(partial(self._resume, run_id, context, approvals))

    async def converse(
        self, messages: Iterable[Message] = (), *, session_id: str | None = None, context: Sequence[Any] = ()
    ) -> Conversation:
        """A conversation to go on with, of what was said elsewhere: the agent's instructions come first."""
        instructions = await self._instruct(context)
        begun = [Message("system", instructions)] if instructions else []
        return Conversation([*begun, *messages], session_id=session_id)

    async def fork(
        self, prompts: Sequence[Prompt], *, conversation: Conversation | None = None, context: Sequence[Any] = ()
    ) -> "list[Result[T] | HotloopError]":
        """Several continuations of one conversation at once, in the order of the prompts; one may be an error."""
        base = conversation if conversation is not None else Conversation()

        async def branch(prompt: Prompt) -> Result[T] | HotloopError:
            try:
                return await self.run(prompt, conversation=base.fork(), context=context)
            except HotloopError as error:
                return error

        async with asyncio.TaskGroup() as group:
            branches = [group.create_task(branch(prompt)) for prompt in prompts]
        return [task.result() for task in branches]

    async def best_of(
        self,
        prompt: Prompt,
        n: int,
        score: Callable[[Result[T]], float],
        *,
        conversation: Conversation | None = None,
        context: Sequence[Any] = (),
    ) -> Result[T]:
        """The best of several answers, the first of them if two are as good. Raises an error only if all failed."""
        results = await self.fork([prompt] * n, conversation=conversation, context=context)
        answers = [result for result in results if isinstance(result, Result)]
        if not answers:
            errors = [error for error in results if isinstance(error, HotloopError)]
            raise errors[0] if errors else ConfigError("n must be above zero")
        return max(answers, key=score)

    def as_tool(self, name: str, description: str, *, options: ToolOptions | None = None) -> SubAgent:
        """This agent as a tool of another: a call is a run, charged to the caller, whose limits hold for it, too."""
        wants = [wanted for tool in self.tools if not isinstance(tool, ToolSource) for wanted in tool.wants]
        wants += [wanted for function in self.settings.functions for wanted in function.wants]
        needs = [need for tool in self.tools for need in ([] if self.settings.approve else approvals_of(tool))]
        return SubAgent(self.run, name, description, options or ToolOptions(timeout_s=None), wants, needs)

    def as_handoff(self, name: str, description: str) -> Handoff:
        """A tool of another agent, whose call gives this one the conversation: it answers in the other's place."""
        return Handoff(self, name, description)

    def rebuild(self, settings: RunSettings, tools: Sequence[AgentTool | ToolSource]) -> "Agent[T]":
        """Another that is like it, but for these."""
        agent: Agent[T] = Agent(settings.model, tools, self.instructions, output=self.output)
        agent.settings = settings
        return agent

    async def __aenter__(self) -> Self:
        """Keep what tools come from open from run to run: an MCP server is started once, not for each."""
        if self._kept:
            raise ConfigError(
                "the agent is already entered: `async with` it once, around all of its runs; one `run_sync` at a time"
            )
        self._kept = kept = OpenTools(self.tools)  # before anything is awaited: nobody else gets past the line above
        try:
            self._check_names(await kept.refresh())
        except BaseException:
            self._kept = None
            await kept.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        kept, self._kept = self._kept, None
        try:
            if kept:
                await kept.close()
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of the connections to its model, and to those of its handoffs; they are made again when needed."""
        for agent in (self, *self._reach()):
            await agent.settings.model.close()

    async def _stream(
        self, kind: type[RunLoop], prompt: Prompt, options: RunOptions, begin: Callable[[Steered], None]
    ) -> AsyncGenerator[Event, None]:
        conversation, context = options.get("conversation"), options.get("context", ())
        conversation = conversation if conversation is not None else Conversation()
        opening = [user_message(prompt, options.get("notes", ""))]
        if not conversation.messages and self.instructions:
            opening.insert(0, Message("system", await self._instruct(context)))
        past = await _find_past(context)
        if past:
            opening, conversation = [], past.conversation
        events = self._go(kind, conversation, context, opening, past, begin, fresh=options.get("fresh", False))
        async with aclosing(events):
            async for event in events:
                yield event

    async def _resume(
        self,
        run_id: str,
        context: Sequence[Any],
        approvals: Approvals | None,
        begin: Callable[[Steered], None],
    ) -> AsyncGenerator[Event, None]:
        journal = _journal_of(self.settings)
        for key, verdict in (approvals or {}).items():
            await decide(journal, *((run_id, key) if isinstance(key, str) else key), verdict)
        past = await take_over(journal, run_id)
        kind = PlannedRun if past.begins_with_plan else RunLoop
        async with aclosing(self._go(kind, past.conversation, context, (), past, begin)) as events:
            async for event in events:
                yield event

    async def _instruct(self, context: Sequence[Any]) -> str:
        if isinstance(self.instructions, str):
            return self.instructions
        return str(await ContextFunction(self.instructions, 0, "the instructions").call(RunContext(context)))

    async def _go(
        self,
        kind: type[RunLoop],
        conversation: Conversation,
        context: Sequence[Any],
        opening: Sequence[Message],
        past: Past | None,
        begin: Callable[[Steered], None],
        *,
        fresh: bool = False,
    ) -> AsyncGenerator[Event, None]:
        events: asyncio.Queue[Event] = asyncio.Queue()
        async with AsyncExitStack() as stack:

            async def hand_to(handoff: Handoff) -> Equipment:
                agent: Agent[Any] = handoff.agent
                return await agent._equipment(stack, await agent._instruct(context))

            try:
                self._check_handoffs(context)
                equipment = await self._find_agent(past.agents if past else ())._equipment(stack)
                loop = kind(
                    equipment.following(self.settings),
                    conversation,
                    context,
                    opening=opening,
                    emit=events.put_nowait,
                    hand_to=hand_to,
                    fresh=fresh,
                    past=past,
                )
            except BaseException:
                if past:
                    give_back(_journal_of(self.settings), past.row)
                raise
            begin(loop)
            task = asyncio.create_task(loop.go())
            try:
                event: Event | None = None
                while not isinstance(event, RunEnded):
                    event = await events.get()
                    yield event
            finally:
                task.cancel()
                await asyncio.wait({task})

    async def _equipment(self, stack: AsyncExitStack, instructions: str = "") -> Equipment:
        opened = self._kept or OpenTools(self.tools)
        if not self._kept:
            stack.push_async_callback(opened.close)
        tools = await opened.refresh()
        self._check_names(tools)
        final = None if self.output is str else FinalAnswer(self.output)
        return Equipment(self.settings, tools, final, instructions)

    def _handoffs(self) -> Iterator[Handoff]:
        return (each for each in self.tools if isinstance(each, Handoff))

    def _find_agent(self, names: Iterable[str]) -> "Agent[Any]":
        """Who was handed the conversation last, by the names of the tools."""
        agent: Agent[Any] = self
        for name in names:
            found = next((each.agent for each in agent._handoffs() if each.spec.name == name), None)
            if found is None:
                raise ConfigError(f"the run was handed to {name!r}, which is none of the agent's handoffs")
            agent = found
        return agent

    def _reach(self) -> "list[Agent[Any]]":
        """The agents that may get the conversation from this one, or from those."""
        reached: list[Agent[Any]] = [self]
        for agent in reached:
            reached += [each.agent for each in agent._handoffs() if each.agent not in reached]
        return reached[1:]

    def _check_handoffs(self, context: Sequence[Any]) -> None:
        """Raises ConfigError for what would keep one of them from going on."""
        for agent in self._reach():
            agent._check_names(own := [tool for tool in agent.tools if not isinstance(tool, ToolSource)])
            Equipment(agent.settings, own).following(self.settings).check(RunContext([_NO_RUN, *context]))

    def _check_names(self, tools: Sequence[AgentTool]) -> None:
        names = [tool.spec.name for tool in tools] + ([] if self.output is str else [FINAL_ANSWER])
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"there are two tools named {name!r}: give one another name, tool(name=...)")


def _run_in_thread(run: Coroutine[Any, Any, T]) -> T:
    """In an event loop of its own. Who is interrupted meanwhile, as by a notebook's stop button, has it cancelled."""
    loop, ran = asyncio.new_event_loop(), Future[T]()

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                result = runner.run(run)
        except BaseException as error:
            ran.set_exception(error)
        else:
            ran.set_result(result)

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    try:
        thread.start()
        return ran.result()
    except BaseException:
        with suppress(RuntimeError):  # it has ended, and with it the loop
            loop.call_soon_threadsafe(cancel)
        if thread.ident:  # one may be interrupted while it starts
            wait([ran])
        raise


def _as_class(given: Priority | str | None) -> Priority | None:
    found = parse_class(given)
    if given is not None and found is None:
        raise ConfigError(
            f"there is no priority {given!r}; there are {', '.join(each.name.lower() for each in Priority)}"
        )
    return found


def _as_model(model: Model | str | Sequence[Model | str]) -> Model:
    if isinstance(model, str):
        return open_model(model)
    return FallbackModel([_as_model(each) for each in model]) if isinstance(model, Sequence) else model


def _has_running_loop() -> bool:
    """Asked apart from what is run: an error there would be told as one that came of this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _as_tool(each: Any) -> AgentTool | ToolSource:
    """A plain function is a tool nothing is said about."""
    return each if hasattr(each, "spec") or hasattr(each, "open") else FunctionTool(each)


async def _find_past(context: Sequence[Any]) -> Past | None:
    """Of a sub-agent's run that had begun when its caller's was broken off: it goes on where it was."""
    within = next((thing for thing in context if isinstance(thing, Caller)), None)
    caller = next((thing for thing in context if isinstance(thing, Run)), None)
    if not (within and within.is_again and within.journal.store and caller):
        return None
    child_id = await asyncio.wrap_future(within.journal.store.find(caller.id, within.call.id))
    return await take_over(within.journal.store, child_id, is_call=True) if child_id else None


def _journal_of(settings: RunSettings) -> Journal:
    journal = (settings.tracer or default_tracer()).journal
    if journal is None:
        raise ConfigError("runs have no journal here: HOTLOOP_TRACE is off, or the agent's tracer keeps none")
    return journal
