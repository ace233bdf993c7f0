"""What a stub says, as bytes on the wire, made once: whole answers and streams in OpenAI's and Anthropic's shapes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
MODEL = "stub"

_NUMBER = "@" * 12  # stands in an answer's id, behind the stub's name, until the answer has a number
_STATUS = {200: b"200 OK", 400: b"400 Bad Request", 404: b"404 Not Found", 500: b"500 Internal Server Error"}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-store\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def render_response(status: int, body: bytes, content_type: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (_STATUS[status], content_type, len(body)) + body


def render_error(message: str) -> bytes:
    return _dump({"error": {"message": message, "type": "server_error", "code": None, "param": None}})


def render_models() -> bytes:
    return _dump({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": MODEL}]})


def whole_answers(name: str, num_words: int) -> Mapping[str, bytes]:
    """By path, head and body; to be `numbered`."""
    bodies = {CHAT: _chat_whole(name, num_words), MESSAGES: _messages_whole(name, num_words)}
    return {path: render_response(200, _dump(body)) for path, body in bodies.items()}


def streams(name: str, num_words: int, *, has_usage: bool) -> Mapping[str, Sequence[bytes]]:
    """By path, the pieces of a stream, to be `numbered`: the head with the first event, the end with the last. A chat
    ends with its usage only where that was asked for."""
    events = {CHAT: list(_chat_events(name, num_words, has_usage)), MESSAGES: list(_messages_events(name, num_words))}
    return {path: _in_pieces(each) for path, each in events.items()}


def numbered(pieces: Sequence[bytes], number: int) -> list[bytes]:
    return [piece.replace(_NUMBER.encode(), b"%012d" % number) for piece in pieces]


def _in_pieces(events: Sequence[bytes]) -> list[bytes]:
    pieces = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    pieces[0] = _STREAM_HEAD + pieces[0]
    pieces[-1] += b"0\r\n\r\n"
    return pieces


def _words(num_words: int) -> Iterator[str]:
    return (f" word{number}" for number in range(num_words))


def _chat_whole(name: str, num_words: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(_words(num_words))}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return _chat(name, "chat.completion", choices=[choice], usage=_chat_usage(num_words))


def _chat_events(name: str, num_words: int, has_usage: bool) -> Iterator[bytes]:
    for number, word in enumerate(_words(num_words)):
        delta = {"role": "assistant", "content": word} if number == 0 else {"content": word}
        is_last = number == num_words - 1
        choice = {"index": 0, "delta": delta, "finish_reason": "stop" if is_last else None}
        event = b"data: %b\n\n" % _dump(_chat(name, "chat.completion.chunk", choices=[choice]))
        if is_last and has_usage:
            usage = _chat(name, "chat.completion.chunk", choices=[], usage=_chat_usage(num_words))
            event += b"data: %b\n\n" % _dump(usage)
        yield event + b"data: [DONE]\n\n" if is_last else event


def _chat(name: str, kind: str, **rest: Any) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{name}.{_NUMBER}",
        "object": kind,
        "created": 1_700_000_000,
        "model": MODEL,
        **rest,
    }


def _chat_usage(num_words: int) -> dict[str, Any]:
    return {"prompt_tokens": 1000, "completion_tokens": num_words, "total_tokens": 1000 + num_words}


def _messages_whole(name: str, num_words: int) -> dict[str, Any]:
    content = [{"type": "text", "text": "".join(_words(num_words))}]
    return _message(name, content, {"input_tokens": 1000, "output_tokens": num_words}, "end_turn")


def _messages_events(name: str, num_words: int) -> Iterator[bytes]:
    """Opening, words and closing, in as many pieces as there are words."""
    opening = _message(name, [], {"input_tokens": 1000, "output_tokens": 1}, None)
    before = _event("message_start", message=opening)
    before += _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    after = _event("content_block_stop", index=0)
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    after += _event("message_delta", delta=ending, usage={"output_tokens": num_words}) + _event("message_stop")
    for number, word in enumerate(_words(num_words)):
        event = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        yield (before if number == 0 else b"") + event + (after if number == num_words - 1 else b"")


def _message(name: str, content: list[Any], usage: dict[str, int], reason: str | None) -> dict[str, Any]:
    opening = {
        "id": f"msg_{name}.{_NUMBER}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
    }
    return {**opening, "stop_reason": reason, "stop_sequence": None, "usage": usage}


def _event(kind: str, **rest: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _dump({"type": kind, **rest}))


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
