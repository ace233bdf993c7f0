"""What the probes say: words nobody has sent before where that matters, and a tool whose schema is hard to keep to."""

import json
import random
from collections.abc import Sequence

from hotloop.wire.field import Json

_WORDS = (
    "anchor", "basket", "candle", "delta", "ember", "forest", "garden", "harbour", "island", "jacket", "kettle",
    "ladder", "meadow", "needle", "orchard", "pepper", "quarry", "ribbon", "saddle", "timber", "umbrella", "valley",
)  # fmt: skip
_CODES = ("k7-zeta", "q2-rho", "x9-mu")
_LEVELS = (3, 5)
_WISHES = (("purple", 250), ("as warm as candle light", 70), ("#ff8800", 12), ("off", 0))


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def long_text(num_chars: int, nonce: str) -> str:
    """Words drawn by lot, other ones for every nonce; the first of them is the nonce itself."""
    rng = random.Random(nonce)
    words = [f"Note {nonce}:"]
    size = len(words[0])
    while size < num_chars:
        words.append(rng.choice(_WORDS))
        size += len(words[-1]) + 1
    return " ".join(words)[:num_chars]


def long_prompt(num_chars: int, nonce: str) -> list[Json]:
    return [user(long_text(num_chars, nonce) + "\nIs there a kettle in it? Answer yes or no.")]


def long_answer(nonce: str) -> list[Json]:
    """Something to be answered at length, and otherwise for every nonce: what was written before helps nobody guess."""
    things = random.Random(nonce).sample(_WORDS, 3)
    return [user(f"Write a long story of twenty chapters about the {things[0]}, the {things[1]} and the {things[2]}.")]


LAMP: Json = {
    "type": "function",
    "function": {
        "name": "set_lamp",
        "description": "Set the lamp.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "colour": {"type": "string", "enum": list(_CODES)},
                "level": {"type": "integer", "enum": list(_LEVELS)},
            },
            "required": ["colour", "level"],
            "additionalProperties": False,
        },
    },
}
OFFER_LAMP: Json = {"tools": [LAMP]}
DEMAND_LAMP: Json = {**OFFER_LAMP, "tool_choice": {"type": "function", "function": {"name": "set_lamp"}}}


def wishes() -> list[list[Json]]:
    """Questions whose plain answers the schema of the lamp forbids."""
    form = "Set the lamp: its colour is to be {!r} and its level {}, exactly as I write them, and its mode 'party'."
    return [[user(form.format(*wish))] for wish in _WISHES]


def is_lamp_call(name: str, arguments: str) -> bool:
    try:
        values = json.loads(arguments)
    except ValueError:
        return False
    allowed = [{"colour": colour, "level": level} for colour in _CODES for level in _LEVELS]
    return name == "set_lamp" and values in allowed


def opening(num_chars: int, nonce: str) -> list[Json]:
    system = {"role": "system", "content": f"You keep notes.\n{long_text(num_chars, nonce)}"}
    return [system, user("Which words stand there? Name two.")]


def follow(messages: Sequence[Json], answer: str) -> list[Json]:
    """The next turn, which begins as the one before and goes on with what was answered."""
    return [*messages, {"role": "assistant", "content": answer}, user("And which other ones?")]


def follow_call(messages: Sequence[Json]) -> list[Json]:
    arguments = json.dumps({"colour": _CODES[0], "level": _LEVELS[0]})
    call = {"id": "call_0", "type": "function", "function": {"name": "set_lamp", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "call_0", "content": "The lamp is set."}
    return [*messages, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
