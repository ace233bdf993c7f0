"""Calls that open without a family's own word: a JSON object that names a tool of the request, in a fence or alone.

Models write them that have forgotten their family's word, or were never taught one:

    ```json
    { "name": "weather", "arguments": {

It is a call because the tool and the key stand there; any other JSON is text. The shape is told twice, as the rules of
a grammar and as a reader of characters, and both take the same texts. Alone it counts only where the answer begins.
"""

from collections.abc import Iterable, Sequence

from hotloop.chat import lark
from hotloop.core.message import Tool

FENCE = "```"
_SPACE = " \t\r\n"
_KEYS = ("arguments", "parameters")
_TERMINALS = (
    r"SPACE: /[ \t\r\n]*/",
    'FENCE: "```" "json"? SPACE',
    r'NAME: "{" SPACE "\"name\"" SPACE ":" SPACE "\""',
    r'ARGUMENTS: "\"" SPACE "," SPACE ("\"arguments\"" | "\"parameters\"") SPACE ":"',
)


def fenced_rules(tools: Sequence[Tool]) -> list[str]:
    """The rule `fenced`: prose and such a call in a fence. It needs `TEXT`, and the tools' arguments `a0`, `a1`, ..."""
    return [*_TERMINALS, *_calls("fenced", "TEXT FENCE", tools, f"\n}}\n{FENCE}")]


def alone_rules(tools: Sequence[Tool]) -> list[str]:
    """The rule `alone`, beside those of `fenced_rules`: such a call by itself."""
    return _calls("alone", "SPACE", tools, "}")


def _calls(rule: str, head: str, tools: Sequence[Tool], closing: str) -> list[str]:
    """Behind the opening the spaces are those of all our calls, whatever stood in it: so most of the call is forced."""
    ways = (f'{rule}{i} " " a{i}' for i in range(len(tools)))
    openings = (f"{rule}{i}[lazy]: {head} NAME {lark.literal(tool.name)} ARGUMENTS" for i, tool in enumerate(tools))
    return [f"{rule}: {lark.either(ways)} {lark.literal(closing)}", *openings]


class CallOpening:
    """Reads such an object as far as the first brace of its arguments, behind the fence if there is one."""

    def __init__(self, names: Iterable[str], *, is_fenced: bool) -> None:
        heads = ("", "json") if is_fenced else ("",)
        # Each way it could go, and how much of that was read. Where words meet, a line's end stands for any space.
        self._ways = [(_way(head, name, key), 0) for name in names for key in _KEYS for head in heads]

    @property
    def is_whole(self) -> bool:
        return any(at == len(way) for way, at in self._ways)

    def push(self, char: str) -> bool:
        """False if no call opens like this."""
        steps = ((way, _step(way, at, char)) for way, at in self._ways)
        self._ways = [(way, at) for way, at in steps if at is not None]
        return bool(self._ways)


def _way(head: str, name: str, key: str) -> str:
    return "\n".join((head, "{", '"name"', ":", f'"{name}"', ",", f'"{key}"', ":", "{"))


def _step(way: str, at: int, char: str) -> int | None:
    """How much is read with this character; None if it cannot come there."""
    if way[at] == "\n":
        if char in _SPACE:
            return at
        at += 1
    return at + 1 if way[at] == char else None
