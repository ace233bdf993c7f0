"""`hotloop chat`: a conversation in the terminal, with a running server or with an engine of its own.

Answers go to stdout and everything else to stderr, so that `echo question | hotloop chat > answer` works.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt

from hotloop.cli.loading import load_engine
from hotloop.cli.settings import ApiKey, ConfigFile, Disable, EngineFlags, ModelFlags
from hotloop.core.config import EngineConfig, ModelConfig, without
from hotloop.core.errors import HotloopError
from hotloop.core.message import Message
from hotloop.core.request import SamplingParams

if TYPE_CHECKING:
    from hotloop.bench.client import ChatClient, Delta
    from hotloop.engine.engine import Engine

Answer = Callable[[tuple[Message, ...]], AsyncGenerator["Delta", None]]
"""Deltas of text, the usage with the last."""

HELP = "/reset clears the conversation, /system TEXT sets the system prompt and clears it, /quit exits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFlags:
    """How answers are chosen."""

    system: str = ""
    """System prompt; the model's own if not given."""
    temperature: NonNegativeFloat = 0.7
    """Sampling temperature; 0 is greedy."""
    max_tokens: PositiveInt = 512
    """Maximum tokens per answer."""
    seed: int | None = None
    """Random seed, for reproducible answers."""


def chat(
    *,
    url: Annotated[
        str | None, Parameter(help="Address of a running server; the model is loaded here if not given.")
    ] = None,
    api_key: ApiKey = None,
    chat: Annotated[ChatFlags, Parameter(name="*")] = ChatFlags(),
    model: ModelFlags = ModelConfig(),
    engine: EngineFlags = EngineConfig(),
    disable: Disable = (),
    config: ConfigFile = None,
) -> None:
    """Chat with a model in the terminal; /help lists the commands."""
    sampling = SamplingParams(temperature=chat.temperature, max_tokens=chat.max_tokens, seed=chat.seed)
    with asyncio.Runner() as runner:
        if url is not None:
            from hotloop.bench.client import ChatClient

            client = ChatClient(url, api_key=api_key)
            runner.run(client.find_model())
            try:
                Repl(answer_by_server(client, sampling), runner, chat.system).run()
            finally:
                runner.run(client.close())
            return

        with load_engine(model, without(engine, disable)) as loaded:
            Repl(answer_by_engine(loaded, sampling), runner, chat.system).run()


def answer_by_server(client: "ChatClient", sampling: SamplingParams) -> Answer:
    options = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "seed": sampling.seed}
    given = {name: value for name, value in options.items() if value is not None}

    def answer(messages: tuple[Message, ...]) -> AsyncGenerator["Delta", None]:
        wire = [{"role": message.role, "content": message.content} for message in messages]
        return client.stream(wire, session_id="chat", **given)

    return answer


def answer_by_engine(engine: "Engine", sampling: SamplingParams) -> Answer:
    from hotloop.bench.client import Delta
    from hotloop.chat.prompt import ChatInput, Prompts

    prompts = Prompts(engine.template, engine.tokenizer)

    async def answer(messages: tuple[Message, ...]) -> AsyncGenerator[Delta, None]:
        prompt = prompts.chat(ChatInput(messages=messages))
        output_ids: list[int] = []
        async with aclosing(engine.stream(prompt.token_ids, sampling, session_id="chat")) as events:
            try:
                async for event in events:
                    output_ids += event.token_ids
                    yield Delta(event.text, event.usage if event.finish_reason else None)
            finally:
                prompts.remember(prompt.token_ids, output_ids)

    return answer


@dataclass(slots=True)
class Repl:
    """Reads lines, keeps the history, shows answers and what they cost."""

    answer: Answer
    runner: asyncio.Runner
    system: str = ""
    read_line: Callable[[str], str] = input
    history: list[Message] = field(default_factory=list)

    def run(self) -> None:
        """Until /quit or the end of the input. Ctrl-C stops an answer; between answers it ends the chat."""
        is_tty = sys.stdin.isatty()
        if is_tty:
            import readline  # noqa: F401 - gives `input` its line editing and history

            _note(HELP)
        while True:
            try:
                line = self.read_line("> " if is_tty else "").strip()
            except EOFError:
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(*line.split(maxsplit=1))
            elif line:
                self._turn(line)

    def _command(self, name: str, text: str = "") -> None:
        match name:
            case "/reset":
                self.history.clear()
            case "/system":
                self.system = text
                self.history.clear()
            case _:
                _note(HELP)

    def _turn(self, line: str) -> None:
        self.history.append(Message("user", line))
        said: list[str] = []
        try:
            self.runner.run(self._answer(said))
        except KeyboardInterrupt:
            print(flush=True)
        except HotloopError as error:
            if not sys.stdin.isatty():
                raise
            _note(f"hotloop: {error}")
        if said:
            self.history.append(Message("assistant", "".join(said)))
        else:
            self.history.pop()

    async def _answer(self, said: list[str]) -> None:
        system = (Message("system", self.system),) if self.system else ()
        began_at, first_at = time.perf_counter(), None
        usage = None
        # Closed here, not when it is collected: that is what stops the engine when an answer is interrupted.
        async with aclosing(self.answer((*system, *self.history))) as deltas:
            async for delta in deltas:
                if delta.text:
                    first_at = first_at or time.perf_counter()
                    said.append(delta.text)
                    print(delta.text, end="", flush=True)
                usage = delta.usage or usage
        print(flush=True)
        ended_at = time.perf_counter()
        if usage:
            first_at = first_at or ended_at
            speed = (usage.num_output - 1) / (ended_at - first_at) if usage.num_output > 1 else 0
            share = usage.num_cached / usage.num_prompt if usage.num_prompt else 0
            _note(
                f"[{usage.num_output} tokens, {speed:.1f} tokens/s, first after {first_at - began_at:.2f} s, "
                f"{share:.0%} of {usage.num_prompt} prompt tokens cached]"
            )


def _note(text: str) -> None:
    is_dim = sys.stderr.isatty()
    print(f"\033[2m{text}\033[0m" if is_dim else text, file=sys.stderr, flush=True)
