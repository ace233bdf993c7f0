"""Results that are too long for the model's window: cut, with the cut told, so that the run goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.agent.runs import end_of, listen, of
from tests.agent.wire.streams import Reply, WireServer
from tests.server.calls import write_call
from tests.server.serving import Serving

from hotloop.agent.agent import Agent
from hotloop.agent.compaction import Compaction
from hotloop.agent.conversation import Conversation, estimate_tokens
from hotloop.agent.events import CallFinished
from hotloop.agent.open_model import open_model
from hotloop.agent.record import record, replay
from hotloop.agent.scripted import ScriptedCall, ScriptedModel
from hotloop.agent.tools.result import MAX_CHARS, cut_to_tokens, render_result
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import ConfigError
from hotloop.trace import names
from hotloop.trace.tracer import ListTracer


@tool
def dump(num_chars: int = 60_000) -> str:
    """All there is."""
    return "begin " + "x" * (num_chars - 10) + " end"


def dumping(window_tokens: int | None = None, **arguments: Any) -> ScriptedModel:
    return ScriptedModel([[ScriptedCall("dump", **arguments)], "ok"], window_tokens=window_tokens)


def as_json(value: Any, status: int = 200) -> Reply:
    return Reply(json.dumps(value).encode(), status=status, content_type="application/json")


async def result_of(agent: Agent[Any]) -> str:
    result = await agent.run("go")
    return next(message.content for message in result.conversation.messages if message.role == "tool")


@pytest.mark.parametrize("prefix", ["", "anthropic:", "responses:"])
async def test_a_result_larger_than_the_window_does_not_end_the_run(prefix: str) -> None:
    with Serving(script=(write_call("dump"), "Much.", "More.")) as serving:
        assert serving.engine.max_context < 60_000, "a token is a byte there"
        agent = Agent(open_model(prefix + serving.url + "/v1"), [dump])
        conversation = Conversation()
        events = await listen(agent, conversation=conversation)
        assert (end_of(events).end, end_of(events).output) == ("done", "Much.")
        assert (await agent.run("And?", conversation=conversation)).output == "More."
        await agent.close()
    [finished] = of(CallFinished, events)
    assert finished.result.startswith("begin xxx")
    assert finished.result.endswith("xxx end")
    assert f"[... {finished.num_chars_cut} characters left out ...]" in finished.result
    assert 60_000 - serving.engine.max_context < finished.num_chars_cut < 60_000


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
async def test_the_share_is_a_setting(share: float) -> None:
    text = await result_of(Agent(dumping(8000), [dump], max_result_share=share))
    assert 0.9 * share * 8000 < estimate_tokens(text) <= share * 8000


@pytest.mark.parametrize("share", [0, -1, 1.1])
def test_a_share_is_above_none_and_at_most_all(share: float) -> None:
    with pytest.raises(ConfigError, match="max_result_share"):
        Agent(dumping(), max_result_share=share)


async def test_the_window_given_for_compaction_counts() -> None:
    text = await result_of(Agent(dumping(), [dump], compaction=Compaction(window_tokens=8000)))
    assert estimate_tokens(text) <= 2000


async def test_a_window_that_nobody_knows_has_a_bound_too() -> None:
    assert "left out" not in await result_of(Agent(dumping(), [dump]))
    assert "left out" in await result_of(Agent(dumping(num_chars=MAX_CHARS), [dump]))


async def test_a_cut_is_told_in_the_largest_window_too() -> None:
    [finished] = of(CallFinished, await listen(Agent(dumping(10**7, num_chars=3 * MAX_CHARS), [dump])))
    assert f"[... {finished.num_chars_cut} characters left out ...]" in finished.result


async def test_small_results_stay_whole_in_the_smallest_window() -> None:
    assert len(await result_of(Agent(dumping(10, num_chars=900), [dump]))) == 900


@pytest.mark.parametrize("text", ["plain " * 5000, "é" * 9001, "日本語" * 3000, "😀" * 7000, "a😀é" * 3000])
def test_no_character_is_cut_in_two_and_all_are_counted(text: str) -> None:
    shown, num_cut = cut_to_tokens(text, 500)
    assert estimate_tokens(shown) <= 500
    head, _, tail = shown.partition(f"\n[... {num_cut} characters left out ...]\n")
    assert len(head) + num_cut + len(tail) == len(text)
    assert text.startswith(head)
    assert text.endswith(tail)


def test_a_text_that_was_cut_before_says_how_much_is_missing_of_the_first() -> None:
    once = render_result("x" * (3 * MAX_CHARS))
    assert len(once) <= MAX_CHARS
    assert render_result(once) == once
    twice, num_cut = cut_to_tokens(once, 1000)
    kept = len(twice.replace(f"\n[... {num_cut} characters left out ...]\n", ""))
    assert kept + num_cut == 3 * MAX_CHARS


async def test_the_trace_tells_of_a_cut() -> None:
    tracer = ListTracer()
    events = await listen(Agent(dumping(8000), [dump], tracer=tracer))
    [span] = [span for span in tracer.spans if span.name == names.TOOL]
    assert span.attributes[names.NUM_CHARS_CUT] == of(CallFinished, events)[0].num_chars_cut > 0


async def test_a_step_of_a_plan_gets_the_whole_of_what_the_model_is_shown_a_part_of() -> None:
    seen: list[int] = []

    @tool
    def measure(text: str) -> str:
        seen.append(len(text))
        return "measured"

    plan = (
        '{"steps": [{"id": "a", "tool": "dump", "arguments": {}},'
        ' {"id": "b", "tool": "measure", "arguments": {"text": "${a}"}}]}'
    )
    model = ScriptedModel([plan, "ok"], window_tokens=8000)
    result = await Agent(model, [dump, measure]).plan("go")
    assert seen == [60_000]
    assert "left out" in next(m.content for m in result.conversation.messages if m.role == "tool")


async def test_a_replay_cuts_where_the_recording_did(tmp_path: Path) -> None:
    model = dumping(8000)
    recorded = await result_of(record(Agent(model, [dump]), tmp_path / "tape"))
    assert "left out" in recorded
    assert await result_of(replay(Agent("http://localhost:9/v1", [dump]), tmp_path / "tape")) == recorded


@pytest.mark.parametrize(
    ("listed", "window"),
    [
        ({"max_model_len": 4096}, 4096),  # hotloop, vLLM, SGLang
        ({"max_input_tokens": 200_000}, 200_000),  # Anthropic
        ({"context_length": 131_072}, 131_072),  # OpenRouter, Together
        ({"context_window": 131_072}, 131_072),  # Groq
        ({"meta": {"n_ctx": 8192, "n_ctx_train": 32_768}}, 8192),  # llama.cpp
        ({"max_model_len": None}, None),
        ({"max_model_len": "much"}, None),
        ({"max_model_len": -1}, None),
        ({}, None),
    ],
)
async def test_the_window_as_servers_list_it(listed: dict[str, Any], window: int | None) -> None:
    models = [{"id": "other", "max_model_len": 1}, {"id": "mine", **listed}]
    async with WireServer(as_json({"data": models})) as server:
        model = open_model(f"{server.url}/v1#mine")
        assert [await model.find_window() for _ in range(2)] == [window] * 2
        await model.close()
    assert len(server.asked) == 1, "it is asked once"


async def test_a_name_that_stands_for_any_model_has_the_smallest_window() -> None:
    models = [{"id": "large", "max_model_len": 9000}, {"id": "small", "max_model_len": 5000}, {"id": "unknown"}]
    async with WireServer(as_json({"data": models})) as server:
        model = open_model(f"{server.url}/v1#auto")
        assert await model.find_window() == 5000
        await model.close()


async def test_a_server_that_lists_nothing() -> None:
    async with WireServer(as_json({"error": {"message": "no such page"}}, status=404)) as server:
        model = open_model(f"{server.url}/v1#mine")
        assert [await model.find_window() for _ in range(2)] == [None] * 2
        await model.close()
    assert len(server.asked) == 1
