"""Replicas that tell no tokens: an answer goes on from its text where the API has a way to say so, and only there."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.router.conftest import Page, serving

from hotloop.router.config import ReplicaConfig

WHOLE = "It is warm in Rome today, and it will stay so."
CALL = '{"city": "Rome"}'
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "How is the weather?"}]


def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"id": "chatcmpl-1", "model": "m", "choices": [choice]}).encode() + b"\n\n"


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


class Teller:
    """Says what it has to say, behind what it was given of it. The first of several to have said so many pieces dies,
    or says that it failed; what is called then is `turns_to`."""

    def __init__(self, name: str, all_of_them: "list[Teller]") -> None:
        self.name = name
        self.url = ""
        self.calls = ""
        self.turns_to: str | None = None
        self.all_of_them = all_of_them
        self.dies_after: int | None = None
        self.last_words = b""
        self.hangs = False
        self.trims = False
        self.minds_limits = False
        self.num_cached: int | None = None
        self.stays_gone = False
        self.is_gone = False
        self.seen: list[dict[str, Any]] = []
        self.num_counted = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        given = json.loads(body or b"{}")
        if scope["method"] == "POST" and given.get("stream"):
            self.seen.append(given)
            if self.hangs and self.dies_after is None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
            await self._stream(scope["path"], given, send)
            return
        if self.is_gone and scope["method"] == "POST":
            raise ConnectionError("the machine is gone")
        known = {"/v1/models": {"data": [{"id": "m"}]}, "/health": {}}
        said = {"tokens": [*given["prompt"].encode()]} if scope["path"] == "/tokenize" else known.get(scope["path"])
        self.num_counted += scope["path"] == "/tokenize"
        await send({"type": "http.response.start", "status": 404 if said is None else 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})

    async def _stream(self, path: str, given: dict[str, Any], send: Any) -> None:
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for i, piece in enumerate(self._pieces(path, given)):
            if i == self.dies_after:
                for each in self.all_of_them:
                    each.dies_after, each.calls = None, each.turns_to or each.calls
                self.is_gone = self.stays_gone
                if not self.last_words:
                    raise ConnectionError("the machine is gone")
                await send({"type": "http.response.body", "body": self.last_words})
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _pieces(self, path: str, given: dict[str, Any]) -> Iterator[bytes]:
        text, most = WHOLE, given.get("max_tokens") if self.minds_limits else None
        if path == "/v1/completions":
            yield from self._complete(text, given["prompt"], most)
            return
        last = given["messages"][-1]
        begun = last["content"] if last["role"] == "assistant" else ""
        begun = begun if isinstance(begun, str) else begun[0]["text"]
        assert text.startswith(begun)
        begun = begun.rstrip() if self.trims else begun
        text = text if most is None else text[: len(begun) + most]
        words = [text[len(begun) :][i : i + 5] for i in range(0, len(text) - len(begun), 5)]
        yield from self._message(words) if path == "/v1/messages" else self._chat(words, len(begun))

    def _chat(self, words: list[str], num_begun: int) -> Iterator[bytes]:
        yield chunk({"role": "assistant", "content": ""})
        yield from (chunk({"content": word}) for word in words)
        if self.calls:
            yield chunk({"tool_calls": [{"index": 0, "id": f"call_{self.name}", "function": {"name": self.calls}}]})
            for char in CALL:
                yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": char}}]})
        yield chunk({}, "tool_calls" if self.calls else self._reason("".join(words)))
        num_output = sum(map(len, words))
        yield self._usage(num_begun, num_output)
        yield b"data: [DONE]\n\n"

    def _reason(self, text: str) -> str:
        return "stop" if not text or WHOLE.endswith(text) else "length"

    def _message(self, words: list[str]) -> Iterator[bytes]:
        yield event("message_start", message={"id": f"msg_{self.name}", "model": "m", "usage": {"input_tokens": 9}})
        yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for word in words:
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        yield event("content_block_stop", index=0)
        yield event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5})
        yield event("message_stop")

    def _complete(self, text: str, prompt: str, most: int | None) -> Iterator[bytes]:
        begun = prompt.removeprefix("Weather: ")
        text = text if most is None else text[: len(begun) + most]
        for char in text.removeprefix(begun):
            yield b"data: " + json.dumps({"id": self.name, "choices": [{"index": 0, "text": char}]}).encode() + b"\n\n"
        end = {"id": self.name, "choices": [{"index": 0, "text": "", "finish_reason": self._reason(text)}]}
        yield b"data: " + json.dumps(end).encode() + b"\n\n"
        yield self._usage(len(begun), len(text) - len(begun)) + b"data: [DONE]\n\n"

    def _usage(self, num_begun: int, num_output: int) -> bytes:
        usage: dict[str, Any] = {"prompt_tokens": 100 + num_begun, "completion_tokens": num_output, "total_tokens": 0}
        if self.num_cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.num_cached}
        return b"data: " + json.dumps({"id": "chatcmpl-1", "choices": [], "usage": usage}).encode() + b"\n\n"


@pytest.fixture
async def tellers() -> AsyncIterator[list[Teller]]:
    both: list[Teller] = []
    both += [Teller("one", both), Teller("two", both)]
    async with serving(both[0]), serving(both[1]):
        yield both


def configs(tellers: list[Teller], kind: str, **fields: Any) -> tuple[ReplicaConfig, ...]:
    return tuple(ReplicaConfig(url=each.url, name=each.name, kind=kind, **fields) for each in tellers)


async def ask(router: Any, path: str = CHAT, **fields: Any) -> bytes:
    asked = {"/v1/completions": {"prompt": "Weather: "}, "/v1/responses": {"input": "How is the weather?"}}
    body = {"model": "m", "stream": True, **asked.get(path, {"messages": MESSAGES, "max_tokens": 90}), **fields}
    return (await router.client.post(path, json=body)).content


def text_of(data: bytes) -> str:
    text = ""
    for line in data.splitlines():
        if line.startswith(b"data: {"):
            said = json.loads(line[6:])
            for choice in said.get("choices", ()):
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            delta = said.get("delta", "")
            text += delta if isinstance(delta, str) else delta.get("text", "")
    return text


def usage_of(data: bytes) -> dict[str, Any]:
    return json.loads(data.split(b"data: ")[-2])["usage"]


@pytest.mark.parametrize("dies_after", range(2, 12))
@pytest.mark.sampled(3)
async def test_a_text_goes_on_from_where_it_was(tellers, route, dies_after):
    for teller in tellers:
        teller.dies_after = dies_after
    router = await route(configs(tellers, "vllm"), max_retries=5)
    data = await ask(router, stream_options={"include_usage": True})
    assert text_of(data) == WHOLE
    assert data.count(b"[DONE]") == data.count(b'"finish_reason":"stop"') + data.count(b'"finish_reason": "stop"') == 1
    [again] = [each for teller in tellers for each in teller.seen if "continue_final_message" in each][:1]
    begun = again["messages"][-1]
    assert begun == {"role": "assistant", "content": WHOLE[: 5 * (dies_after - 1)]}
    assert again["max_tokens"] == 90 - len(begun["content"])
    usage = usage_of(data)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (100, len(WHOLE))
    page = (await router.client.get("/metrics")).text
    assert 'how="text"' in page


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"temperature": 1, "seed": 3}])
@pytest.mark.parametrize("kind", ["vllm", "anthropic"])
async def test_space_at_a_cut_is_told_once_also_where_a_template_trims(tellers, route, kind, fields, trims):
    for teller in tellers:
        teller.trims, teller.dies_after = trims, 7 + (kind == "anthropic")
    router = await route(configs(tellers, kind))
    data = await ask(router, CHAT if kind == "vllm" else "/v1/messages", **fields)
    assert text_of(data) == WHOLE


USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize("dies_after", [6, 7, 8])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/v1/completions"])
@pytest.mark.sampled(2)
async def test_an_answer_with_all_its_tokens_has_no_more_of_them(tellers, route, path, dies_after):
    """Cut before it was told that these were all; a replica must say one at least."""
    for teller in tellers:
        teller.minds_limits = True
        teller.dies_after = dies_after + (18 if path == "/v1/completions" else 0)
    router = await route(configs(tellers, "vllm", apis=frozenset({"chat", "completions", "tokenize"})))
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    data = await ask(router, path, temperature=0, **{limit: 25}, **(USAGE if path in (CHAT, "/v1/completions") else {}))
    assert text_of(data) == WHOLE[:25]
    if path in (CHAT, "/v1/completions"):
        assert b'"finish_reason":"length"' in data.replace(b" ", b"")
        usage = usage_of(data)
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (100, 25)
        assert data.count(b"[DONE]") == 1
    elif path == "/v1/messages":
        assert b'"max_tokens"' in data
        assert b'"output_tokens":25' in data.partition(b"message_delta")[2]
    else:
        assert b"response.incomplete" in data
        assert b'"output_tokens":25' in data


@pytest.mark.parametrize("calls", ["", "weather"])
@pytest.mark.parametrize("limits", [{}, {"max_tokens": 90}, {"max_completion_tokens": 46, "max_tokens": None}])
async def test_what_an_answer_took_is_told_if_it_was_cut_behind_its_end(tellers, route, calls, limits):
    num_calls = 1 + len(CALL) if calls else 0
    for teller in tellers:
        teller.calls, teller.dies_after = calls, 1 + len(range(0, len(WHOLE), 5)) + num_calls + 1
    router = await route(configs(tellers, "vllm"))
    data = await ask(router, temperature=0, **USAGE, **limits)
    assert text_of(data) == WHOLE
    usage = usage_of(data)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (100, len(WHOLE))
    assert (data.replace(b" ", b"").count(b'"finish_reason":"'), data.count(b"[DONE]")) == (1, 1)
    again = next(each for teller in tellers for each in teller.seen if each is not tellers[0].seen[0])
    assert calls or "continue_final_message" in again


async def test_text_that_ends_at_a_word_is_written_anew(tellers, route):
    """What may be the beginning of that word is held back, and may be half of a token."""
    for teller in tellers:
        teller.dies_after = 4
    router = await route(configs(tellers, "vllm"))
    assert text_of(await ask(router, temperature=0, stop=["never"])) == WHOLE
    assert all("continue_final_message" not in each for teller in tellers for each in teller.seen)


async def test_items_keep_the_ids_that_they_began_with(scripted, route):
    """The first replica's own; the other is asked for a chat."""
    place = {"output_index": 0, "item_id": "own"}
    begun = [
        event("response.created", response={"id": "resp_1", "output": []}, sequence_number=0),
        event("response.output_item.added", output_index=0, item={"id": "own", "type": "message"}),
        event("response.content_part.added", **place, content_index=0, part={"type": "output_text"}),
        event("response.output_text.delta", **place, content_index=0, delta=WHOLE[:9]),
    ]
    rest = [chunk({"content": WHOLE[9:]}), chunk({}, "stop"), b"data: [DONE]\n\n"]
    scripted.truncated = {"/v1/responses"}
    scripted.pages["/v1/responses"] = Page(b"".join(begun), 200, b"text/event-stream")
    scripted.pages[CHAT] = Page(b"".join(rest), 200, b"text/event-stream")
    router = await route((ReplicaConfig(url=scripted.url, name="r", kind="vllm"),))
    data = await ask(router, "/v1/responses", temperature=0)
    told = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    ids = {each["item_id"] for each in told if "item_id" in each} | {
        each["item"]["id"] for each in told if "item" in each
    }
    assert ids == {"own"}
    assert [item["id"] for item in told[-1]["response"]["output"]] == ["own"]


async def test_a_signature_need_not_be_told_again(scripted, route):
    thought, block = "They want the weather.", {"type": "thinking", "thinking": ""}
    begun = [
        event("message_start", message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 9}}),
        event("content_block_start", index=0, content_block=block),
        event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": thought}),
        event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "x"}),
        event("content_block_stop", index=0),
        event("content_block_start", index=1, content_block={"type": "text", "text": ""}),
        event("content_block_delta", index=1, delta={"type": "text_delta", "text": WHOLE[:9]}),
    ]
    anew = [chunk({"reasoning": thought}), chunk({"content": WHOLE}), chunk({}, "stop"), b"data: [DONE]\n\n"]
    scripted.truncated = {"/v1/messages"}
    scripted.pages["/v1/messages"] = Page(b"".join(begun), 200, b"text/event-stream")
    scripted.pages[CHAT] = Page(b"".join(anew), 200, b"text/event-stream")
    router = await route((ReplicaConfig(url=scripted.url, name="r", kind="vllm"),))
    data = await ask(router, "/v1/messages", temperature=0)
    assert text_of(data).replace(thought, "") == WHOLE
    assert data.count(b"signature_delta") == 1
    assert b"event: error" not in data


async def test_a_text_that_could_go_on_without_its_last_space_may(tellers, route):
    """It was given it, and was not trimmed."""
    for teller in tellers:
        teller.dies_after, teller.turns_to = 7, "weather"
    router = await route(configs(tellers, "vllm"))
    data = await ask(router)
    assert text_of(data) == WHOLE
    assert b"weather" in data


async def test_a_completion_goes_on_too(tellers, route):
    for teller in tellers:
        teller.dies_after = 7
    router = await route(configs(tellers, "sglang"))
    data = await ask(router, "/v1/completions", stream_options={"include_usage": True})
    assert text_of(data) == WHOLE
    usage = usage_of(data)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 46, 146)
    assert len({json.loads(line[6:])["id"] for line in data.splitlines() if line.startswith(b"data: {")}) == 1


async def test_the_tokens_of_its_text_are_counted_where_somebody_can(tellers, route):
    """The replica that was lost was up a moment ago."""
    for teller in tellers:
        teller.dies_after, teller.stays_gone = 7, True
    router = await route(configs(tellers, "vllm"))
    usage = usage_of(await ask(router, stream_options={"include_usage": True}))
    assert [teller.num_counted for teller in tellers if teller.is_gone] == [0]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (100, len(WHOLE))


async def test_what_a_replica_had_cached_of_the_answer_is_not_of_the_prompt(tellers, route):
    for teller in tellers:
        teller.dies_after, teller.num_cached = 7, 116
    router = await route(configs(tellers, "vllm"))
    usage = usage_of(await ask(router, stream_options={"include_usage": True}))
    assert usage["prompt_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 100


async def test_the_beginning_that_a_client_gave_stays_in_front_of_the_text(tellers, route):
    for teller in tellers:
        teller.dies_after = 4
    router = await route(configs(tellers, "vllm"))
    given = [*MESSAGES, {"role": "assistant", "content": WHOLE[:6]}]
    data = await ask(router, messages=given, continue_final_message=True, add_generation_prompt=False)
    assert text_of(data) == WHOLE[6:]
    last = {"role": "assistant", "content": WHOLE[: 6 + 3 * 5]}
    assert [*MESSAGES, last] in [each["messages"] for teller in tellers for each in teller.seen]


SHAPE = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": SHAPE}),
        (CHAT, {"structured_outputs": {"regex": ".*"}}),
        (CHAT, {"guided_json": {"type": "object"}}),
        (CHAT, {"frequency_penalty": 0.5}),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}}}),
        ("/v1/completions", {"response_format": SHAPE}),
    ],
)
async def test_what_depends_on_the_whole_answer_is_written_anew(tellers, route, path, fields):
    """A grammar would begin again behind the text, and no penalty would count it."""
    for teller in tellers:
        teller.dies_after = 4
    router = await route(configs(tellers, "vllm", apis=frozenset({"chat", "completions", "tokenize"})))
    data = await ask(router, path, temperature=0, **fields)
    assert text_of(data) == WHOLE
    seen = [each for teller in tellers for each in teller.seen]
    assert len(seen) == 2
    assert all("continue_final_message" not in each and each.get("prompt") in (None, "Weather: ") for each in seen)


async def test_text_of_a_grammar_that_could_be_another_is_not(tellers, route):
    for teller in tellers:
        teller.dies_after = 4
    router = await route(configs(tellers, "vllm"))
    data = await ask(router, response_format=SHAPE)
    assert b"held to a grammar" in data
    assert text_of(data) == WHOLE[:15]


async def test_there_is_as_much_less_that_must_be_said(tellers, route):
    for teller in tellers:
        teller.dies_after = 4
    router = await route(configs(tellers, "vllm"))
    assert text_of(await ask(router, min_tokens=20, response_format={"type": "text"})) == WHOLE
    assert [each["min_tokens"] for teller in tellers for each in teller.seen if "continue_final_message" in each] == [5]


@pytest.mark.parametrize("path", ["/v1/messages", CHAT, "/v1/responses"])
async def test_anthropics_api_is_given_it_as_a_prefill(tellers, route, path):
    for teller in tellers:
        teller.dies_after = 5
    router = await route(configs(tellers, "anthropic"))
    data = await ask(router, path)
    assert text_of(data) == WHOLE
    [again] = [each for teller in tellers for each in teller.seen if each["messages"][-1]["role"] == "assistant"]
    assert again["messages"][-1]["content"] in (WHOLE[:15].rstrip(), [{"type": "text", "text": WHOLE[:15].rstrip()}])


async def test_an_api_that_cannot_go_on_says_so(tellers, route):
    for teller in tellers:
        teller.dies_after = 4
    router = await route(configs(tellers, "openai_compatible"))
    data = await ask(router)
    assert text_of(data) == WHOLE[:15]
    assert b"cannot go on elsewhere: no other replica of a kind that can is up" in data
    assert data.count(b"broke off") == 1
    assert sum(len(teller.seen) for teller in tellers) == 1
    assert 'how="failed"' in (await router.client.get("/metrics")).text


async def test_what_has_said_nothing_yet_is_asked_for_anywhere(tellers, route):
    """The first event of a stream is no answer."""
    for teller in tellers:
        teller.dies_after = 1
        teller.last_words = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    router = await route(configs(tellers, "openai_compatible"))
    data = await ask(router)
    assert text_of(data) == WHOLE
    assert data.count(b'"role"') == 1


@pytest.mark.parametrize("dies_after", [12, 16, 20])
async def test_a_call_is_written_anew_where_the_same_words_are_sure(tellers, route, dies_after):
    for teller in tellers:
        teller.calls, teller.dies_after = "weather", dies_after
    router = await route(configs(tellers, "vllm"))
    data = await ask(router, temperature=0)
    chunks = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    calls = [call for each in chunks for call in each["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(call["function"].get("arguments") or "" for call in calls) == CALL
    assert len([call for call in calls if call.get("id")]) == 1
    assert text_of(data) == WHOLE


async def test_a_call_that_could_be_another_is_not(tellers, route):
    for teller in tellers:
        teller.calls, teller.dies_after = "weather", 16
    router = await route(configs(tellers, "vllm"))
    data = await ask(router)
    assert b"a call or a thought had begun" in data
    assert b"[DONE]" not in data


async def test_other_words_are_never_put_behind_those_that_were_told(tellers, route):
    for teller in tellers:
        teller.calls, teller.dies_after, teller.turns_to = "weather", 16, "another"
    router = await route(configs(tellers, "vllm"))
    data = await ask(router, temperature=0)
    assert b"could not be gone on with elsewhere" in data
    assert b'"another"' not in data


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_replica_that_says_that_it_failed_is_lost_too(tellers, route, path):
    for teller in tellers:
        teller.dies_after = 4
        teller.last_words = b'data: {"error": {"message": "EngineDeadError", "code": 500}}\n\n'
        if path == "/v1/messages":
            teller.last_words = event("error", error={"type": "api_error", "message": "EngineDeadError"})
    router = await route(configs(tellers, "vllm" if path == CHAT else "anthropic"))
    data = await ask(router, path)
    assert text_of(data) == WHOLE
    assert b"EngineDead" not in data


async def test_what_is_the_requests_own_fault_is_its_answer(tellers, route):
    for teller in tellers:
        teller.dies_after = 4
        teller.last_words = b'data: {"error": {"message": "bad grammar", "code": 400}}\n\n'
    router = await route(configs(tellers, "vllm"))
    data = await ask(router)
    assert b"bad grammar" in data
    assert sum(len(teller.seen) for teller in tellers) == 1


@pytest.mark.parametrize("fields", [{"n": 2}, {"logprobs": True}, {"top_logprobs": 2}])
async def test_several_choices_and_log_probabilities_are_not_gone_on_with(tellers, route, fields):
    for teller in tellers:
        teller.dies_after = 4
    router = await route(configs(tellers, "vllm"))
    assert b"cannot go on elsewhere" in await ask(router, **fields)


async def test_who_leaves_while_an_answer_looks_for_another_replica_leaves_nothing_behind(tellers, route):
    for teller in tellers:
        teller.dies_after, teller.hangs = 4, True
    router = await route(configs(tellers, "vllm"))
    body = {"model": "m", "stream": True, "messages": MESSAGES}
    async with router.client.stream("POST", CHAT, json=body) as response:
        heard = b""
        async for piece in response.aiter_raw():
            heard += piece
            if WHOLE[:5].encode() in heard:
                break
        await router.until(lambda: sum(len(teller.seen) for teller in tellers) == 2)
    await router.until(lambda: all(not each.num_running for each in router.replica_set.replicas.values()))
    assert sum(each.upstream.num_open for each in router.replica_set.replicas.values()) <= 1


ODD = [
    b'data: {"choices": [{"delta": {"content": {"a": 1}, "tool_calls": [3, {"index": {}, "function": "x"}]}}]}\n\n',
    b'data: {"choices": {"x": 1}, "message": "m", "response": 5, "sequence_number": "x"}\n\n',
    b"data: [1]\n\ndata: {broken\n\n",
    b'event: content_block_delta\ndata: {"type": "content_block_delta", "delta": {"type": ["x"]}}\n\n',
    b'event: response.failed\ndata: {"type": "response.failed", "response": "x"}\n\n',
    b'data: {"error": [1]}\n\n',
    b": tokens " + b"9" * 5000 + b"\n\n",
    b": tokens 1 2 x\n\n: tokens\n\n",
    b'data: {"id": ["x"], "choices": [{"text": {"a": 1}, "index": []}]}\n\n',
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/v1/completions"])
@pytest.mark.sampled(4)
async def test_nothing_that_a_replica_says_breaks_the_router(scripted, route, caplog, path, odd):
    """It breaks off behind that, and whatever comes next is the same again."""
    body = odd + chunk({"content": "It"}) + odd
    scripted.pages |= {path: Page(body, 200, b"text/event-stream")}
    scripted.truncated = {path, CHAT}
    settings = {"max_retries": 1, "queue_timeout_s": 0.2}
    router = await route((ReplicaConfig(url=scripted.url, name="r", kind="vllm"),), **settings)
    await ask(router, path)
    assert not [each for each in caplog.records if each.name == "hotloop.router" and each.exc_info]
    assert all(not each.num_running for each in router.replica_set.replicas.values())
