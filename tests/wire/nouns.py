"""Requests and answers made up at random, of what each format can hold."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from hotloop.core.message import Thought
from hotloop.wire.part import Api, Call, File, Image, Text, ToolResult, Turn
from hotloop.wire.request import ApiRequest, ApiTool, Cache, Choice, OutputShape

Json = dict[str, Any]

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
said = words.filter(str.strip)
ids = st.from_regex(r"[a-zA-Z0-9_-]{1,8}", fullmatch=True)
names = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
_schemas = st.sampled_from([{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object"}])
_arguments = st.sampled_from(["{}", '{"a": 1}', '{"ü": [1.5, null]}'])
_marks = st.none() | st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])
_urls = st.sampled_from(["https://x/a.png", "data:image/png;base64,AAAA"])
_pdf = "data:application/pdf;base64,BB"

_texts = st.builds(Text, said)
_images = st.builds(Image, _urls)
_detailed = st.builds(Image, _urls, st.none() | st.sampled_from(["low", "high"]))
_files = st.builds(File, st.just(_pdf), name=names)


def _marked(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda part, mark: part.marked(mark), parts, _marks)


def _turn(role: Any, *parts: st.SearchStrategy[Any], max_size: int = 3) -> st.SearchStrategy[Turn]:
    return st.builds(Turn, st.just(role), st.lists(st.one_of(*parts), min_size=1, max_size=max_size).map(tuple))


def _plain(role: Any) -> st.SearchStrategy[Turn]:
    return st.builds(lambda text: Turn(role, (Text(text),), is_plain=True), said)


def _results(**fields: Any) -> st.SearchStrategy[ToolResult]:
    plain = st.builds(lambda call_id, text: ToolResult(call_id, (Text(text),)), ids, said)
    listed = st.builds(ToolResult, ids, st.lists(_texts, min_size=1, max_size=2).map(tuple), st.just(False), **fields)
    return plain | listed


def _answer(thoughts: st.SearchStrategy[Thought], texts: Any, calls: Any) -> st.SearchStrategy[Turn]:
    """Thoughts, then text, then calls."""
    parts = st.tuples(st.lists(thoughts, max_size=1), texts, st.lists(calls, max_size=2))
    return parts.map(lambda each: Turn("assistant", tuple(part for some in each for part in some))).filter(
        lambda turn: any(not isinstance(part, Thought) for part in turn.parts)
    )


_calls = st.builds(Call, ids, names, _arguments)
_one_text = st.lists(_texts, max_size=1)

_unsigned = said.map(Thought)
_signed = st.builds(lambda text, mark: Thought(text, mark, maker="messages"), words, ids)
_redacted = ids.map(lambda data: Thought(data, is_sealed=True, maker="messages"))
_sealed = st.builds(lambda seal, summary: Thought("", seal, maker="responses", summary=summary), ids, words)

_turns: dict[Api, st.SearchStrategy[Turn]] = {
    "messages": st.one_of(
        _plain("user").map(lambda turn: Turn("user", turn.parts)),
        _turn("user", _marked(_texts), _marked(_images), _marked(_files), _marked(_results(is_error=st.booleans()))),
        _turn("assistant", _texts, _marked(_calls), _signed, _redacted).filter(
            lambda turn: any(not isinstance(part, Thought) for part in turn.parts)
        ),
        _turn("system", _texts, max_size=2),
    ),
    "responses": st.one_of(
        _plain("user"),
        _turn("user", _texts, _detailed, _files),
        _results().map(lambda result: Turn("user", (result,))),
        _answer(_unsigned | _sealed | _signed | _redacted, st.lists(_texts, max_size=2), _calls),
        _answer(_unsigned, _one_text, st.builds(Call, ids, names, _arguments, names)),
        _plain("system"),
    ),
    "chat": st.one_of(
        _plain("user"),
        _turn("user", _marked(_texts), _marked(_detailed), _marked(_files)),
        _results().map(lambda result: Turn("user", (ToolResult(result.call_id, (Text(result.text),)),))),
        _answer(_unsigned, _one_text, _calls),
        _plain("system"),
    ),
}


def _settled(api: Api, turns: list[Turn]) -> tuple[Turn, ...]:
    """As a format has them: Anthropic has no two turns of one role in a row, and begins with the system's."""
    if api == "chat":
        return tuple(_with_content(turn) for turn in turns)
    if api == "responses":
        return tuple(turn for i, turn in enumerate(turns) if not (i and _goes_on(turns[i - 1], turn)))
    kept: list[Turn] = []
    for turn in turns:
        if not kept or kept[-1].role != turn.role:
            kept.append(turn)
    return tuple(kept)


def _with_content(turn: Turn) -> Turn:
    """A chat's answer has a text, be it empty, unless it has calls."""
    if turn.role != "assistant":
        return turn
    return Turn("assistant", turn.parts, is_plain=any(isinstance(part, Text) for part in turn.parts))


def _goes_on(before: Turn, turn: Turn) -> bool:
    return before.role == turn.role == "assistant"


def _agreed(request: ApiRequest, api: Api) -> ApiRequest:
    """A tool that must be called is one of those given, and only a chat's stream says whether it has usage."""
    choice, [first, *_] = request.choice, request.tools
    named = replace(choice, name=first.name) if choice.name and isinstance(first, ApiTool) else choice
    return replace(request, choice=named, has_usage=request.is_stream and api == "chat")


def requests(api: Api) -> st.SearchStrategy[ApiRequest]:
    is_plain = api != "messages"
    begins = [Turn("system", (Text("s"),), is_plain), Turn("user", (Text("hi"),), is_plain)]
    turns = st.builds(
        lambda begin, turns: _settled(api, [*begins[begin:], *turns]),
        st.integers(0, 1),
        st.lists(_turns[api], max_size=5),
    )
    about = {"strict": True} if api == "messages" else {"name": "answer", "strict": True}
    tools = st.builds(
        ApiTool,
        names,
        st.none() | words,
        _schemas,
        st.none() | st.booleans(),
        mark=st.none() if api == "responses" else _marks,
    )
    caches = st.builds(Cache, key=st.none() | ids, retention=st.none() | st.just("24h"))
    efforts = ["low", "high", "max"] if api == "messages" else ["none", "low", "xhigh"]
    own: Json = {
        "chat": {"n": 2, "store": True},
        "responses": {"include": ["x"], "previous_response_id": "r"},
        "messages": {"container": "c"},
    }[api]
    choices = [Choice(), Choice("auto"), Choice("none"), Choice("required", is_parallel=False), Choice("required", "f")]
    return st.builds(
        ApiRequest,
        api=st.just(api),
        model=st.just("m"),
        turns=turns,
        tools=st.lists(tools, min_size=1, max_size=2, unique_by=lambda tool: tool.name).map(tuple),
        choice=st.sampled_from(choices),
        shape=st.none() | st.builds(OutputShape, _schemas, st.just(about)),
        max_tokens=st.integers(1, 99),
        temperature=st.none() | st.floats(0, 1),
        top_p=st.none() | st.floats(0, 1),
        top_k=st.none() | st.integers(1, 9),
        stop=st.lists(said, max_size=2).map(tuple),
        is_stream=st.booleans(),
        effort=st.none() | st.sampled_from(efforts),
        thinking=st.none() if api != "messages" else st.none() | st.just({"type": "disabled"}),
        verbosity=st.none() if api == "messages" else st.none() | st.sampled_from(["low", "high"]),
        user=st.none() | ids,
        service_tier=st.none() | st.sampled_from(["auto", "default"]),
        cache=st.just(Cache({"type": "ephemeral"})) | (st.just(Cache()) if api == "messages" else caches),
        own=st.just({}) | st.just(own),
        fields=st.just({}) | st.just({"min_p": 0.1, "guided_json": {"a": [1]}}),
    ).map(lambda request: _agreed(request, api))
