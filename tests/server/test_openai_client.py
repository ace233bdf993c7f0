"""Every parameter, through the real `openai` client."""

import openai
import pytest
from tests.server.serving import HELLO, MODEL, TOKENIZER, Serving, only, token


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, extra_body=only("a"))
    [choice] = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", "aaaaa")
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.system_fingerprint
    assert answer.created > 1_600_000_000


def test_chat_streamed_says_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, temperature=0)
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, temperature=0, stream=True)
    chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert all(chunk.usage is None for chunk in chunks)


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="hi", max_tokens=3, extra_body=only("b"))
    assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [("bbb", "length")]
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"


def test_completion_streamed_says_the_same(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="hi", max_tokens=20, temperature=0)
    chunks = list(client.completions.create(model=MODEL, prompt="hi", max_tokens=20, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_completion_defaults_to_sixteen_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="hi", extra_body=only("a"))
    assert answer.choices[0].text == "a" * 16


def test_prompts_of_every_kind(client: openai.OpenAI) -> None:
    ids = TOKENIZER.encode("hi")
    for prompt, num_choices in [("hi", 1), (["hi", "ho"], 2), (ids, 1), ([ids, ids, ids], 3)]:
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0)  # type: ignore[call-overload]
        assert [choice.index for choice in answer.choices] == list(range(num_choices))
        assert answer.usage.prompt_tokens == 2 * num_choices


def test_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["x=", "y="], max_tokens=2, n=2, echo=True, extra_body=only("1")
    )
    assert [choice.text for choice in answer.choices] == ["x=11", "x=11", "y=11", "y=11"]
    stream = client.completions.create(
        model=MODEL, prompt="x=", max_tokens=2, echo=True, stream=True, extra_body=only("1")
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == "x=11"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(client: openai.OpenAI, name: str) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=only("a") | {name: 7})
    assert answer.usage
    assert answer.usage.completion_tokens == 7
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stop", ["ccc", ["zzz", "ccc"]])
def test_stop_strings_never_leak(client: openai.OpenAI, stop: str | list[str]) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, stop=stop, extra_body=only("c"))
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")
    assert answer.choices[0].model_extra == {"stop_reason": "ccc"}
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stop=stop, stream=True, extra_body=only("c"))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ""


def test_a_stop_string_is_kept_on_request(client: openai.OpenAI) -> None:
    extra = only("c") | {"include_stop_str_in_output": True}
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, stop="cc", extra_body=extra)
    assert answer.choices[0].message.content == "cc"


def test_stop_token_ids(client: openai.OpenAI) -> None:
    extra = only("c") | {"stop_token_ids": [token("c")]}
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=extra)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": token("c")}


def test_min_tokens_and_ignore_eos(client: openai.OpenAI) -> None:
    end = only("<|im_end|>")
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=9, extra_body=end)
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("stop", "")
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=9, extra_body=end | {"min_tokens": 4}
    )
    assert answer.usage
    assert answer.usage.completion_tokens >= 4
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=9, extra_body=end | {"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"


def test_a_seed_repeats_itself_and_its_choices_differ(client: openai.OpenAI) -> None:
    def texts() -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, seed=7, temperature=2, max_tokens=24, n=3, extra_body={"ignore_eos": True}
        )
        return [choice.message.content for choice in answer.choices]

    first = texts()
    assert first == texts()
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "someone", "seed": -1},
        {"seed": 2**63 - 1, "n": 2},
        {"seed": -(2**63), "n": 2},
        {"priority": "workflow"},
        {"service_tier": "flex"},
        {"session_id": "s1", "prompt_cache_key": "k"},
        {"response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True},
        {"temperature": None, "stop": None, "n": None, "stream": None, "logprobs": None, "tools": None},
    ],
    ids=str,
)
def test_what_changes_no_text_is_taken(serving: Serving, extra: dict[str, object]) -> None:
    for response in (serving.chat(**extra), serving.complete(**extra)):
        assert response.status_code == 200, response.text


def test_n_streams_interleave_by_index(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, n=4, max_tokens=6, stream=True, extra_body=only("d")
    )
    texts = dict.fromkeys(range(4), "")
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == dict.fromkeys(range(4), "dddddd")


def test_usage_counts_the_prompt_once_and_what_was_cached(client: openai.OpenAI) -> None:
    messages: list[object] = [{"role": "user", "content": "the same long question, again and again. " * 5}]
    usages = [
        client.chat.completions.create(model=MODEL, messages=messages, n=3, max_tokens=4, extra_body=only("e")).usage  # type: ignore[arg-type]
        for _ in range(2)
    ]
    for usage in usages:
        assert usage
        assert usage.completion_tokens == 12
        assert usage.prompt_tokens < 300
        assert usage.total_tokens == usage.prompt_tokens + 12
        assert usage.prompt_tokens_details
    assert usages[0].prompt_tokens_details.cached_tokens == 0
    assert usages[1].prompt_tokens_details.cached_tokens > 150


def test_usage_chunk(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        n=2,
        max_tokens=3,
        stream=True,
        stream_options=options,
        extra_body=only("a"),  # type: ignore[call-overload]
    )
    *chunks, last = stream
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == 6
    assert last.usage.prompt_tokens_details.cached_tokens >= 0


def test_usage_is_asked_for_without_a_stream(client: openai.OpenAI) -> None:
    """A whole answer has it anyway: clients that ask for it by a setting are not to fail."""
    for stream in (False, None):
        options = {"stream_options": {"include_usage": True}, "stream": stream}
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4, extra_body=options)
        assert answer.usage
        assert answer.usage.completion_tokens == 4


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=3, max_tokens=2, extra_body=only("a")
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.content
    assert [item.token for item in logprobs.content] == ["a", "a"]
    for item in logprobs.content:
        assert item.bytes == [ord("a")]
        assert item.logprob <= 0
        assert len(item.top_logprobs) == 3
        assert [top.logprob for top in item.top_logprobs] == sorted(
            (t.logprob for t in item.top_logprobs), reverse=True
        )


def test_chat_logprobs_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, max_tokens=5, stream=True, extra_body=only("a")
    )
    items = [
        item
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs
        for item in choice.logprobs.content or []
    ]
    assert [item.token for item in items] == ["a"] * 5
    assert all(item.top_logprobs == [] for item in items)


def test_completion_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="hi", logprobs=2, max_tokens=3, extra_body=only("a"))
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.tokens == ["a", "a", "a"]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.token_logprobs
    assert len(logprobs.token_logprobs) == 3
    assert logprobs.top_logprobs
    assert all("a" in tops and 1 <= len(tops) <= 3 for tops in logprobs.top_logprobs)


def test_completion_logprobs_streamed(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="hi", logprobs=0, max_tokens=4, stream=True, extra_body=only("a")
    )
    offsets = [offset for chunk in stream if (lp := chunk.choices[0].logprobs) for offset in lp.text_offset or []]
    assert offsets == [0, 1, 2, 3]


def test_message_content_in_parts_and_every_role(client: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, max_tokens=2)  # type: ignore[call-overload]
    assert answer.choices[0].message.role == "assistant"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_errors_have_their_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)
    assert refused.value.param == "temperature"
