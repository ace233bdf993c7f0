"""Images and files: in prompts and in what tools give, to each API, in the journal and on tapes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.runs import end_of, listen, of
from tests.agent.wire import streams as wires
from tests.agent.wire.streams import WireServer

from hotloop.agent.agent import Agent
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import RunStarted
from hotloop.agent.open_model import open_model
from hotloop.agent.record import record, replay
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import ConfigError
from hotloop.core.message import Attachment
from hotloop.trace.store import StoreTracer
from hotloop.trace.tracer import NullTracer

PNG = b"\x89PNG\r\n\x1a\n...."
CAT, PAPER, NOTE = (
    Attachment.of(PNG, "image/png"),
    Attachment.of(b"%PDF-1.7", "application/pdf", "bill.pdf"),
    Attachment.of("Zwölf".encode(), "text/plain", "note.txt"),
)
ADDRESSES = {"chat": "{}/v1#m", "messages": "anthropic:{}#m", "responses": "responses:{}/v1#m"}
ANSWERS = {"chat": wires.OPENAI_TEXT, "messages": wires.ANTHROPIC_TEXT, "responses": wires.RESPONSES_TEXT}


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[StoreTracer]:
    tracer = StoreTracer(tmp_path / "trace.db")
    yield tracer
    tracer.close()


@tool(read_only=True)
def photograph(of: str) -> list[Any]:
    return [f"The {of}:", CAT, PAPER]


async def sent(api: str, *attachments: Attachment) -> dict[str, Any]:
    """What a server of that API is sent: a prompt with these, behind a turn whose tool gave an image and a file."""
    conversation = Conversation()
    script = ScriptedModel([ScriptedCall("photograph", of="cat"), "There."])
    await Agent(script, [photograph], tracer=NullTracer()).run("go", conversation=conversation)
    async with WireServer(ANSWERS[api]) as server:
        agent = Agent(open_model(ADDRESSES[api].format(server.url)), [photograph], tracer=NullTracer())
        async with agent:
            await agent.run(["What is it?", *attachments], conversation=conversation)
        [body] = server.bodies
        return body


async def test_chat_completions_have_a_results_image_in_the_users_turn() -> None:
    messages = (await sent("chat", CAT, PAPER, NOTE))["messages"]
    image = {"type": "image_url", "image_url": {"url": CAT.url}}
    file = {"type": "file", "file": {"filename": "bill.pdf", "file_data": PAPER.url}}
    assert messages[-1]["content"] == [
        {"type": "text", "text": "What is it?"},
        image,
        file,
        {"type": "text", "text": "note.txt\nZwölf"},
    ]
    [result, shown] = messages[2:4]
    assert result["role"] == "tool"
    assert result["content"].startswith("The cat:")
    assert shown["role"] == "user"
    assert shown["content"][1:] == [image, file]


async def test_responses_have_them_where_they_are() -> None:
    items = (await sent("responses", CAT, PAPER))["input"]
    kinds = [part["type"] for part in items[-1]["content"]]
    assert kinds == ["input_text", "input_image", "input_file"]
    [output] = [item["output"] for item in items if item.get("type") == "function_call_output"]
    assert [part["type"] for part in output] == ["input_text", "input_image", "input_file"]
    assert output[1]["image_url"] == CAT.url


async def test_messages_have_them_where_they_are() -> None:
    messages = (await sent("messages", CAT, PAPER, NOTE))["messages"]
    assert [block["type"] for block in messages[-1]["content"]] == ["text", "image", "document", "document"]
    [result] = messages[2]["content"]
    assert [block["type"] for block in result["content"]] == ["text", "image", "document"]
    assert result["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": CAT.url[22:]}


@pytest.mark.parametrize(
    ("api", "media_type", "words"),
    [
        ("chat", "audio/wav", "audio/wav is not supported"),
        ("responses", "video/mp4", "video/mp4 is not supported"),
        ("messages", "application/zip", "Anthropic's messages take images, PDF and texts, not application/zip"),
    ],
)
async def test_what_an_api_cannot_take_is_told_before_it_is_asked(api: str, media_type: str, words: str) -> None:
    agent = Agent(open_model(ADDRESSES[api].format("http://127.0.0.1:9")), tracer=NullTracer())
    with pytest.raises(ConfigError, match=words):
        await agent.run(["Listen.", Attachment.of(b"...", media_type)])


def test_what_no_attachment_is(tmp_path: Path) -> None:
    for url, words in (
        ("file:///etc/passwd", "data URL or the address"),
        ("data:;base64,AAAA", "media type and base64"),
        ("data:image/png,abc", "media type and base64"),
        ("https://" + "x" * (33 << 20), "more than 32 MiB"),
    ):
        with pytest.raises(ConfigError, match=words):
            Attachment(url)
    with pytest.raises(ConfigError, match="does not say what it is"):
        Attachment.read(tmp_path / "thing.unheardof")
    (tmp_path / "a.png").write_bytes(PNG)
    assert Attachment.read(tmp_path / "a.png") == Attachment(CAT.url, "a.png")


async def test_they_are_in_the_journal_and_in_saved_conversations(tracer: StoreTracer) -> None:
    class Down(ScriptedModel):
        is_down = True

        def stream(self, ask: Any) -> Any:
            if self.is_down and len(ask.messages) > 1:
                raise ConfigError("not now")
            return super().stream(ask)

    model = Down([ScriptedCall("photograph", of="cat"), "There."])
    agent = Agent(model, [photograph], tracer=tracer)
    events = await listen(agent, ["What is it?", NOTE])
    assert end_of(events).end == "failed"
    model.is_down = False
    result = await agent.resume(of(RunStarted, events)[0].run_id)
    messages = result.conversation.messages
    assert [message.attachments for message in messages] == [(NOTE,), (), (CAT, PAPER), ()]
    assert Conversation.from_json(result.conversation.to_json()).messages == messages


async def test_they_are_on_tapes(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    script = [ScriptedCall("photograph", of="cat"), "ok"]

    def make() -> Agent[str]:
        return Agent(ScriptedModel(script), [photograph], tracer=NullTracer())

    first = await record(make(), tape).run(["go", CAT])
    again = await replay(make(), tape).run(["go", CAT])
    assert first.conversation.messages == again.conversation.messages
    assert again.conversation.messages[2].attachments == (CAT, PAPER)
    assert json.loads(tape.read_text().splitlines()[0]) == {"line": "tape", "version": 3}
