"""OpenAI's responses: instructions, tools and the items of an input. What a stored response holds cannot be seen."""

from collections.abc import Iterator

from hotloop.lint.part import Json, Kind, Part, listing, mapping, text_of
from hotloop.lint.shapes.chat import content_parts, tool_part


def responses_parts(body: Json) -> Iterator[Part]:
    if isinstance(instructions := body.get("instructions"), str) and instructions:
        yield Part("system", "instructions", instructions, "system")
    for i, tool in enumerate(listing(body.get("tools"))):
        yield tool_part(mapping(tool), f"tools[{i}]")
    given = body.get("input")
    if isinstance(given, str):
        yield Part("text", "input", given, "user", message=0)
    for i, item in enumerate(map(mapping, listing(given))):
        yield from item_parts(item, i, f"input[{i}]")


def item_parts(item: Json, index: int, path: str) -> Iterator[Part]:
    match item.get("type", "message"):
        case "function_call":
            arguments = text_of(item.get("arguments", ""))
            yield Part("call", f"{path}.arguments", arguments, "assistant", str(item.get("name", "")), index)
        case "function_call_output":
            yield Part("result", f"{path}.output", text_of(item.get("output", "")), "tool", message=index)
        case "reasoning":
            yield Part("thinking", path, _thought(item), "assistant", message=index)
        case "message":
            role = str(item.get("role", ""))
            kind: Kind = "system" if role in ("system", "developer") else "text"
            yield from content_parts(item.get("content"), kind, f"{path}.content", role, index)
        case _:
            yield Part("text", path, text_of(item), "assistant", "item", index)


def _thought(item: Json) -> str:
    if sealed := item.get("encrypted_content"):
        return text_of(sealed)
    return "".join(text_of(mapping(piece).get("text", "")) for piece in listing(item.get("summary")))
