"""References within a schema: where they lead, and what nothing leads to."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

DEFINITIONS = ("$defs", "definitions")


def without_unused(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without the definitions that nothing in it leads to: nobody has to be able to say those."""
    kept: dict[str, dict[str, Any]] = {key: {} for key in DEFINITIONS if isinstance(root.get(key), Mapping)}
    if not kept:
        return root
    rest = {key: value for key, value in root.items() if key not in kept}
    todo: list[Any] = [rest]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        elif isinstance(part, Mapping):
            todo += part.values()
            if isinstance(reference := part.get("$ref", part.get("$dynamicRef")), str) and reference != "#":
                head, _, name = unquote(reference).removeprefix("#/").partition("/")
                name = name.partition("/")[0].replace("~1", "/").replace("~0", "~")
                if head in kept and name not in kept[head] and name in root[head]:
                    kept[head][name] = root[head][name]
                    todo.append(root[head][name])
                elif not reference.startswith("#/"):
                    return root  # by a name, which may be anywhere
    return {**rest, **{key: {name: part for name, part in root[key].items() if name in kept[key]} for key in kept}}


def has_names(root: Any) -> bool:
    """Whether parts of a schema have names of their own, which references may mean."""
    todo = [root]
    while todo:
        part = todo.pop()
        inner = part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ()
        names = [each.get("$id", each.get("id")) for each in inner if isinstance(each, Mapping)]
        if any(isinstance(name, str) and not name.startswith("#/") for name in names):
            return True
        todo += inner
    return False


def point(schema: Any, reference: str) -> Any:
    """What a reference within the schema leads to. Raises LookupError or ValueError."""
    head, *parts = unquote(reference).split("/")
    if head != "#":
        raise LookupError(reference)
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, list | Mapping):
            raise LookupError(reference)
        schema = schema[int(key)] if isinstance(schema, list) else schema[key]
    return schema
