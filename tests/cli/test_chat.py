"""`hotloop chat` with its input piped, against a server on loopback."""

import asyncio
import io
from collections.abc import Iterator

import pytest
from benchmarks.vocabularies import null_tokenizer
from tests.bench.fake_server import FakeServer
from tests.cli.test_main import hotloop

from hotloop.backends.null import NullBackend
from hotloop.bench.client import ChatClient
from hotloop.cli.chat import Repl, answer_by_engine, answer_by_server
from hotloop.core.message import Message
from hotloop.core.request import FinishReason, SamplingParams
from hotloop.engine.engine import Engine
from hotloop.models.template import ChatTemplate

ANSWER = " word0 word1 word2"


class Lines:
    """An `input` that reads from a text."""

    def __init__(self, text: str) -> None:
        self._lines = io.StringIO(text)

    def __call__(self, prompt: str) -> str:
        line = self._lines.readline()
        if not line:
            raise EOFError
        return line


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def talk(server: FakeServer, runner: asyncio.Runner, text: str, system: str = "") -> list[list[tuple[str, str]]]:
    """What the server was sent, a list of (role, content) for each turn."""
    client = ChatClient(server.url)
    sampling = SamplingParams(temperature=0, max_tokens=3, seed=1)
    Repl(answer_by_server(client, sampling), runner, system, read_line=Lines(text)).run()
    runner.run(client.close())
    return [[(m["role"], m["content"]) for m in body["messages"]] for body in server.bodies]


def test_the_history_is_resent_and_answers_are_printed(runner: asyncio.Runner, capsys: pytest.CaptureFixture[str]):
    with FakeServer() as server:
        turns = talk(server, runner, "Hello\n\nAnd now?\n")
    assert turns[0] == [("user", "Hello")]
    assert turns[1] == [("user", "Hello"), ("assistant", ANSWER), ("user", "And now?")]
    captured = capsys.readouterr()
    assert captured.out == f"{ANSWER}\n" * 2
    assert "3 tokens," in captured.err
    assert "0% of 1 prompt tokens cached" in captured.err
    options = {name: server.bodies[0][name] for name in ("temperature", "max_tokens", "seed")}
    assert options == {"temperature": 0, "max_tokens": 3, "seed": 1}


def test_reset_and_system_start_anew(runner: asyncio.Runner):
    with FakeServer() as server:
        turns = talk(server, runner, "a\n/reset\nb\n/system Be brief.\nc\n/quit\nd\n", system="Be kind.")
    assert turns == [
        [("system", "Be kind."), ("user", "a")],
        [("system", "Be kind."), ("user", "b")],
        [("system", "Be brief."), ("user", "c")],
    ]


def test_an_unknown_command_lists_those_there_are(runner: asyncio.Runner, capsys: pytest.CaptureFixture[str]):
    with FakeServer() as server:
        assert talk(server, runner, "/what\n") == []
    assert "/reset" in capsys.readouterr().err


def test_an_interrupt_between_answers_ends_the_chat(runner: asyncio.Runner):
    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    with FakeServer() as server:
        answer = answer_by_server(ChatClient(server.url), SamplingParams())
        with pytest.raises(KeyboardInterrupt):
            Repl(answer, runner, read_line=interrupt).run()


TEMPLATE = ChatTemplate(
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", bos_token="", eos_token=""
)


async def test_an_engine_answers_as_a_server_does():
    with Engine(null_tokenizer(100), NullBackend(vocab_size=100), template=TEMPLATE) as engine:
        answer = answer_by_engine(engine, SamplingParams(temperature=0, max_tokens=3))
        deltas = [delta async for delta in answer((Message("user", "Hello"),))]
    assert "".join(delta.text for delta in deltas).startswith("w")
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.num_output == 3


async def test_closing_an_answer_stops_the_engine():
    with Engine(null_tokenizer(100), NullBackend(vocab_size=100), template=TEMPLATE) as engine:
        answer = answer_by_engine(engine, SamplingParams(temperature=0))((Message("user", "Hello"),))
        await anext(answer)
        await answer.aclose()
        await engine.drain(60)
        assert engine.stats().num_finished[FinishReason.ABORT] == 1


def test_a_piped_chat_writes_answers_to_stdout_alone():
    with FakeServer() as server:
        result = hotloop("chat", "--url", server.url, "--max-tokens", "3", stdin="Hello\n", HOTLOOP_API_KEY="secret")
    assert (result.returncode, result.stdout) == (0, f"{ANSWER}\n")
    assert "tokens/s" in result.stderr
    assert server.api_keys == ["Bearer secret"]


@pytest.mark.long
def test_a_piped_chat_fails_when_the_server_does():
    with FakeServer(failing=frozenset({0})) as server:
        result = hotloop("chat", "--url", server.url, stdin="Hello\n")
    assert result.returncode == 1
    assert result.stderr == f"hotloop: {server.url} answered 503: out of order\n"
