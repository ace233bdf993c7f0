"""Conversations as clients of both APIs have them, made up at random but always well formed."""

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
ids = st.from_regex(r"[a-zA-Z0-9_-]{1,8}", fullmatch=True)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | words
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6
)
objects = st.dictionaries(words, values, max_size=3)
_images = st.sampled_from(["https://x/a.png", "data:image/png;base64,AAAA"])


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _image_source(url: str) -> Json:
    if url.startswith("data:"):
        return {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    return {"type": "url", "url": url}


_texts = words.map(_text)
_pictures = _images.map(lambda url: {"type": "image", "source": _image_source(url)})
_results = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": ids, "content": words | st.lists(_texts | _pictures, max_size=3)},
    optional={"is_error": st.booleans()},
)
_uses = st.fixed_dictionaries({"type": st.just("tool_use"), "id": ids, "name": ids, "input": objects})
_thoughts = words.map(lambda text: {"type": "thinking", "thinking": text, "signature": "s"})
_turns = st.one_of(
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": words | st.lists(_texts | _pictures | _results, min_size=1, max_size=4)}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": words | st.lists(_texts | _thoughts | _uses, min_size=1, max_size=4)}
    ),
    st.fixed_dictionaries({"role": st.just("system"), "content": words | st.lists(_texts, min_size=1, max_size=2)}),
)
message_bodies = st.fixed_dictionaries(
    {
        "model": st.just("m"),
        "max_tokens": st.integers(1, 99),
        "messages": st.lists(_turns, min_size=1, max_size=6),
    },
    optional={"system": words | st.lists(_texts, max_size=2)},
)

_parts = words.map(_text) | _images.map(lambda url: {"type": "image_url", "image_url": {"url": url}})
_functions = st.fixed_dictionaries({"name": ids, "arguments": st.sampled_from(["{}", '{"a": 1}', "oops", ""])})
_calls = st.fixed_dictionaries({"id": ids, "type": st.just("function"), "function": _functions})
_messages = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": words | st.lists(_parts, min_size=1, max_size=3)}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | words},
        optional={
            "tool_calls": st.lists(_calls, max_size=3),
            "reasoning_content": words,
            "thinking_blocks": st.lists(_thoughts, max_size=2),
        },
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": ids, "content": words}),
    st.fixed_dictionaries({"role": st.just("system"), "content": words}),
)
chat_bodies = st.fixed_dictionaries(
    {
        "model": st.just("m"),
        "messages": st.lists(_messages, max_size=6).map(
            lambda messages: [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, *messages]
        ),
    }
)
