"""Deployments that answer oddly, hold back, or mean no good: each ends in one clear line, soon."""

import gzip
from collections.abc import Callable
from itertools import count

import pytest
from tests.doctor.speaking import NOT_FOUND, Asked, Reply, Script, engine, events, page, say, speaking

from hotloop.core.errors import ConfigError, RemoteError
from hotloop.doctor import prompts
from hotloop.doctor.deployment import Deployment, Refused
from hotloop.doctor.examine import TimeLimits, examine
from hotloop.doctor.facts import TimedAnswer
from hotloop.doctor.target import meet

HELLO = [prompts.user("hello")]
MODELS = page({"data": [{"id": "fake"}]})


def chatting(reply: Reply | Callable[[Asked], Reply]) -> Script:
    """Lists a model, and answers a chat so."""

    def answer(asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return MODELS
        if asked.path != "/v1/chat/completions":
            return NOT_FOUND
        return reply(asked) if callable(reply) else reply

    return answer


async def ask(script: Script, *, api_key: str | None = None) -> TimedAnswer:
    async with speaking(script) as url, Deployment(url, api_key=api_key) as deployment:
        return await deployment.ask(HELLO, max_tokens=8)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(b"<html>Sign in</html>", content_type="text/html"), "not an answer: <html>Sign in"),
        (Reply(b""), "not an answer: nothing at all"),
        (Reply(status=307, headers={"Location": "https://elsewhere.example"}), "redirects to https://elsewhere.exa"),
        (page({"error": {"message": "out of order"}}, status=500), "answered 500: out of order$"),
        (page({"error": "out of order"}, status=500), "answered 500: out of order$"),
        (page({"object": "error", "message": "out of order"}, status=500), "answered 500: out of order$"),
        (page(["out of order"], status=500), "answered 500: the replica answered with status 500$"),
        (Reply(say("word").body, 200, "text/event-stream", repeats=True), "does not end"),
        (Reply(b"data: " + b"x" * 65536, 200, "text/event-stream", repeats=True), "sent more than 8 MiB"),
        (Reply(gzip.compress(bytes(2**26)), headers={"Content-Encoding": "gzip"}), "sent more than 8 MiB"),
    ],
    ids=["html", "nothing", "redirect", "error", "plain error", "message", "list", "endless", "one line", "bomb"],
)
async def test_what_is_no_answer_is_said_in_a_line(reply: Reply, said: str):
    with pytest.raises(RemoteError, match=said):
        await ask(chatting(reply))


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(b"<html>Welcome</html>", content_type="text/html"), "is not a list of models: <html>Welcome"),
        (page({"data": []}), "lists no model: name one with `--model`"),
        (Reply(b" " * 65536, repeats=True), "sent more than 8 MiB"),
        (page({"error": {"message": "who are you?"}}, status=401), r"401: who are you\? \(give a key with `--api-key`"),
    ],
    ids=["html", "empty", "endless", "no key"],
)
async def test_what_is_no_list_of_models_is_said_in_a_line(reply: Reply, said: str):
    with pytest.raises(RemoteError, match=said):
        await ask(lambda _: reply)


async def test_of_many_models_the_first_is_asked_for():
    models = page({"data": [{"id": f"model-{i}"} for i in range(10_000)]})
    bodies: list[str] = []

    def answer(asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return models
        bodies.append(asked.body["model"])
        return say("yes")

    assert (await ask(answer)).text == "yes "
    assert bodies == ["model-0"]


async def test_a_whole_answer_to_who_wanted_a_stream_came_in_one_piece():
    whole = {"choices": [{"message": {"content": "all of it"}}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    heard = await ask(chatting(page(whole)))
    assert (heard.text, heard.num_pieces, len(heard.arrivals_s), heard.num_prompt) == ("all of it", 1, 1, 5)


async def test_the_key_is_never_quoted():
    def tell(asked: Asked) -> Reply:
        return page({"error": {"message": f"wrong: {asked.headers['authorization']}"}}, status=401)

    with pytest.raises(RemoteError, match=r"wrong: Bearer \*\*\*$"):
        await ask(chatting(tell), api_key="sk-secret")


async def test_whoever_is_told_to_come_again_later_does():
    numbers = count()

    def refuse_twice(_: Asked) -> Reply:
        refusal = page({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "0"})
        return refusal if next(numbers) < 2 else say("yes")

    heard = await ask(chatting(refuse_twice))
    assert (heard.text, heard.num_refused) == ("yes ", 2)


async def test_later_is_not_waited_for_without_end():
    for retry_after in ("0", "3600"):
        with pytest.raises(Refused, match="429"):
            await ask(chatting(Reply(b"busy", 429, headers={"Retry-After": retry_after})))


async def test_another_name_for_how_long_an_answer_may_be_is_learned():
    asked_for: list[str] = []

    def insist(asked: Asked) -> Reply:
        asked_for.extend(name for name in asked.body if name.startswith("max_"))
        if "max_tokens" in asked.body:
            return page({"error": {"message": "Use 'max_completion_tokens' instead."}}, status=400)
        return say("yes")

    async with speaking(chatting(insist)) as url, Deployment(url) as deployment:
        for _ in range(2):
            await deployment.ask(HELLO, max_tokens=8)
    assert asked_for == ["max_tokens", "max_completion_tokens", "max_completion_tokens"]


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://", "http://me:secret@host"])
def test_an_address_is_one_and_has_no_password(url: str):
    with pytest.raises(ConfigError) as error:
        Deployment(url)
    assert "secret" not in str(error.value)


async def test_silence_has_an_end():
    ping = Reply(b": ping\n\n" * 4096, 200, "text/event-stream", repeats=True)
    async with speaking(chatting(ping)) as url, Deployment(url) as deployment:
        with pytest.raises(RemoteError, match=r"timed out after 0\.05 s|sent more than 8 MiB"):
            await examine(deployment, pace=TimeLimits(check_s=0.05))


def messages_only(asked: Asked) -> Reply:
    """Anthropic's API, which remembers what was marked."""
    if asked.path != "/v1/messages" or asked.headers.get("x-api-key") != "secret":
        return NOT_FOUND
    marked = [block for block in asked.body["messages"][-1]["content"] if block.get("cache_control")]
    usage = {"input_tokens": 10, "cache_read_input_tokens": 290 if marked else 0, "cache_creation_input_tokens": 0}
    return events(
        {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yes "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "indeed"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    )


async def test_whoever_has_messages_alone_is_asked_by_messages():
    async with speaking(messages_only) as url, Deployment(url, model="m", api_key="secret") as deployment:
        target = await meet(deployment)
        heard = await deployment.ask(HELLO, max_tokens=8)
    assert deployment.api == "messages"
    assert target.kind == "anthropic_compatible"
    assert (heard.text, heard.num_prompt, heard.num_cached, heard.num_output) == ("yes indeed", 300, 290, 2)


async def test_whoever_has_neither_is_said_to_have_no_chat():
    async with speaking(lambda _: NOT_FOUND) as url, Deployment(url, model="m") as deployment:
        with pytest.raises(RemoteError, match="answered 404"):
            await meet(deployment)


async def test_a_connection_that_was_closed_is_seen_without_a_request():
    async with Deployment("http://127.0.0.1:1", model="m") as deployment:
        assert not deployment.is_connected
    async with speaking(engine({})) as url, Deployment(url) as deployment:
        await deployment.ask(HELLO, max_tokens=8)
        assert deployment.is_connected
