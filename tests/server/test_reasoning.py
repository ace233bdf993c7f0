"""Models that reason, through all three APIs: nothing lost, leaked or out of order; budgets, grammars and usage."""

import json
import random
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from tests.backends.scripted import ScriptedBackend
from tests.chat.reasoning_templates import thinking_template
from tests.loopback import claude_at
from tests.server.asking import function
from tests.server.calls import WEATHER, tool, write_call
from tests.server.serving import MODEL, Serving
from tokenizers import Tokenizer as InnerTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from hotloop.models.tokenizer import Tokenizer

APIS = ("chat", "responses", "messages")
NUM_STREAMS = 60
ARGUMENTS = {"city": "Paris", "days": 2}
CALL = write_call("weather", **ARGUMENTS)
Parts = list[tuple[str, Any]]

_WORDS = (
    "well",
    "so",
    "a < b",
    "</thin",
    "<tool_call",
    "{",
    "}",
    '"',
    "[THINK]",
    "```",
    "é",
    "日本",
    "2\n\n3",
    "<|x|>",
)


class NumberedBackend(ScriptedBackend):
    """Says the script whose number the user asks for."""

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        text = self._spell(token_ids)
        answer = text.rpartition(self._opening)[2]
        number = int(re.findall(rb"script (\d+)", text)[-1])
        return self._places[number].get(answer, self._end_id)

    def _plan(self, text: str) -> dict[bytes, int]:
        """No token reaches across the end of the prompt, which may have an opening."""
        opening = "<think>\n" if text.startswith("<think>\n") else ""
        return super()._plan(opening) | {
            opening.encode() + said: token_id for said, token_id in super()._plan(text[len(opening) :]).items()
        }


def make_script(seed: int) -> tuple[str, Parts, bool]:
    """An answer, what it says, and whether it is one that a grammar of calls lets pass."""
    rng = random.Random(seed)
    text, parts = "", Parts()
    is_plain = seed % 2 == 0

    def words() -> str:
        return " ".join(rng.choices(_WORDS, k=rng.randint(1, 5)))

    def think() -> None:
        nonlocal text
        parts.append(("thought", words()))
        text += f"<think>\n{parts[-1][1]}\n</think>\n\n"

    def call() -> None:
        nonlocal text
        arguments = {"city": rng.choice(["Paris", "Rome"]), "days": rng.randint(1, 5)}
        parts.append(("weather", arguments))
        text += write_call("weather", **arguments) + "\n"

    for i in range(1 if is_plain else rng.randint(1, 3)):
        if i or rng.random() < 0.8:
            think()
        if rng.random() < 0.6:
            parts.append(("text", f"I say {words()}."))
            text += parts[-1][1] + "\n"
    for _ in range(rng.randint(0, 2)):
        if not is_plain and rng.random() < 0.5:
            think()
        call()
    if not is_plain and rng.random() < 0.3:  # a call begins inside the thought
        parts.append(("thought", words()))
        text += f"<think>\n{parts[-1][1]}\n"
        call()
    return (text.rstrip("\n"), parts, is_plain) if parts else ("So.", [("text", "So.")], True)


def ask_openai(client: openai.OpenAI, content: str, *, is_strict: bool, **more: Any) -> Parts:
    tools = [tool("weather", WEATHER, strict=is_strict)]
    messages: Any = [{"role": "user", "content": content}]
    asked = {"model": MODEL, "messages": messages, "tools": tools, "max_tokens": 600, **more}
    stream = client.chat.completions.create(**asked, stream=True)
    return _join(_chat_parts(chunk.choices[0].delta for chunk in stream if chunk.choices))


def _chat_parts(deltas: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for delta in deltas:
        if thought := getattr(delta, "reasoning_content", None):
            yield "thought", thought
        if delta.content:
            yield "text", delta.content
        for piece in delta.tool_calls or ():
            if piece.function.name:
                yield "call", (piece.function.name, "")
            else:
                yield "arguments", piece.function.arguments


def ask_responses(client: openai.OpenAI, content: str, *, is_strict: bool) -> Parts:
    tools: Any = [function("weather", WEATHER, strict=is_strict)]
    parts: Parts = []
    with client.responses.stream(model=MODEL, input=content, tools=tools) as stream:
        for event in stream:
            if event.type == "response.reasoning_text.delta":
                parts.append(("thought", event.delta))
            elif event.type == "response.output_text.delta":
                parts.append(("text", event.delta))
            elif event.type == "response.output_item.added" and event.item.type == "function_call":
                parts.append(("call", (event.item.name, "")))
            elif event.type == "response.output_item.added":
                parts.append(("begin", event.item.type))
            elif event.type == "response.function_call_arguments.delta":
                parts.append(("arguments", event.delta))
        final = stream.get_final_response()
    whole: Parts = []
    for item in final.output:
        if item.type == "reasoning":
            assert item.content
            whole.append(("thought", item.content[0].text))
        elif item.type == "message":
            whole.append(("text", item.content[0].text))  # type: ignore[union-attr]
        elif item.type == "function_call":
            whole.append((item.name, json.loads(item.arguments)))
    assert _join(parts) == whole
    return whole


def ask_anthropic(client: anthropic.Anthropic, content: str, *, is_strict: bool, **more: Any) -> Parts:
    tools: Any = [{"name": "weather", "input_schema": WEATHER, "strict": is_strict}]
    messages: Any = [{"role": "user", "content": content}]
    asked = {"model": MODEL, "messages": messages, "tools": tools, "max_tokens": 600, **more}
    parts: Parts = []
    with client.messages.stream(**asked) as stream:
        for event in stream:
            if event.type == "content_block_start":
                parts.append(("begin", event.content_block.type))
                if event.content_block.type == "tool_use":
                    parts.append(("call", (event.content_block.name, "")))
            elif event.type == "thinking":
                parts.append(("thought", event.thinking))
            elif event.type == "text":
                parts.append(("text", event.text))
            elif event.type == "input_json":
                parts.append(("arguments", event.partial_json))
        final = stream.get_final_message()
    whole: Parts = []
    for block in final.content:
        if block.type == "thinking":
            assert block.signature.startswith("hotloop:")
            whole.append(("thought", block.thinking))
        elif block.type == "text":
            whole.append(("text", block.text))
        elif block.type == "tool_use":
            whole.append((block.name, block.input))
    assert _join(parts) == whole
    return whole


ASK: dict[str, Any] = {"chat": ask_openai, "responses": ask_responses, "messages": ask_anthropic}


@contextmanager
def client_of(serving: Serving, api: str) -> Iterator[Any]:
    if api == "messages":
        with claude_at(serving.url) as client:
            yield client
    else:
        with serving.openai() as client:
            yield client


def _join(parts: Iterable[tuple[str, Any]]) -> Parts:
    """Deltas as the parts they are of, in the order in which they were told."""
    joined: Parts = []
    is_new = True
    for kind, value in parts:
        if kind == "begin":
            is_new = True
        elif kind == "arguments":
            joined[-1] = (joined[-1][0], joined[-1][1] + value)
        elif kind == "call":
            joined.append(value)
        elif joined and joined[-1][0] == kind and not is_new:
            joined[-1] = (kind, joined[-1][1] + value)
        else:
            joined.append((kind, value))
            is_new = False
    return [(kind, value if kind in ("thought", "text") else json.loads(value)) for kind, value in joined]


def merged(parts: Parts) -> Parts:
    """As a chat has it, which has no end of a thought: two that follow each other are one."""
    return [
        (kind, "".join(value for _, value in group)) if kind in ("thought", "text") else each
        for kind, same in groupby(parts, key=lambda part: part[0])
        for group in [list(same)]
        for each in (group if kind not in ("thought", "text") else [group[0]])
    ]


def make_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Cuts these texts into tokens of some characters, which end anywhere in them."""
    inner = InnerTokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, max_token_length=7, show_progress=False)
    inner.train_from_iterator(texts, trainer)
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Tokenizer(inner)


SCRIPTS = [make_script(seed) for seed in range(NUM_STREAMS)]
WORDS = make_tokenizer(text for text, _, _ in SCRIPTS)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("num_streams", [16, pytest.param(NUM_STREAMS, marks=pytest.mark.long)])
def test_nothing_is_lost_leaked_or_out_of_order(num_streams: int, api: str, is_opened: bool) -> None:
    """Streams through each API; of some that begin with a thought the prompt opens it."""
    backend = NumberedBackend(WORDS, [text for text, _, _ in SCRIPTS], num_blocks=4096)

    def check(number: int) -> None:
        text, parts, is_strict = SCRIPTS[number]
        heard = ASK[api](client, f"script {number}", is_strict=is_strict)
        assert heard == (merged(parts) if api == "chat" else parts), text

    opened = {i for i in range(0, num_streams, 2) if SCRIPTS[i][0].startswith("<think>")}
    numbers = [i for i in range(num_streams) if (i in opened) == is_opened]
    template = thinking_template(is_opened=is_opened)
    with (
        Serving(template=template, backend=backend, tokenizer=WORDS) as serving,
        client_of(serving, api) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        assert len([*pool.map(check, numbers)]) == len(numbers) > num_streams / 4
