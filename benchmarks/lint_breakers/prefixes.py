"""Breakers of prefixes, HL001 to HL010: what begins a prompt, its tools and its history do not stay as they were."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from random import Random
from uuid import UUID

from benchmarks.lint_breakers.talk import (
    SYSTEM,
    Breaker,
    Broken,
    Json,
    Spot,
    Talk,
    Turn,
    system_of,
    with_system,
    with_tools,
)

_BEGAN_AT = datetime(2026, 6, 9, 23, 55, tzinfo=UTC)
_CLOCKS = (
    "Current date and time: {:%A, %B %d, %Y, %I:%M:%S %p}.",
    "<now>{:%Y-%m-%dT%H:%M:%S}Z</now>",
    "Today is {:%d.%m.%Y}, {:%H:%M:%S} o'clock.",
    "timestamp={:%s}",
    "[{:%H:%M:%S}]",
)
_CARTS = ("is empty", "holds a lamp", "holds a lamp and two chairs", "holds two chairs", "was given up")
_THOUGHT = "They want to know something. I should look at what is there before I say anything about it. "


def _lines_in_front(line: Callable[[int], str], talk: Talk, rng: Random) -> Broken | None:
    """A line that is another in every request, somewhere among the lines of the system text."""
    place = rng.choice([0, 0, *(i + 1 for i, char in enumerate(system_of(talk[0])[:-1]) if char == "\n")])
    broken, spots = [], []
    for n, turn in enumerate(talk):
        text, words = system_of(turn), line(n)
        broken.append(with_system(turn, f"{text[:place]}{words}\n{text[place:]}"))
        if n and words != line(n - 1):
            spots.append(Spot(n, "messages[0].content", place, place + len(words)))
    return Broken(broken, spots) if spots else None


def _tell_cart(talk: Talk, rng: Random) -> Broken | None:
    return _lines_in_front(lambda n: f"The cart {_CARTS[n % len(_CARTS)]}.", talk, rng)


def _tell_time(talk: Talk, rng: Random) -> Broken | None:
    form, seconds = rng.choice(_CLOCKS), rng.choice([1, 37, 3601, 90_000])

    def line(n: int) -> str:
        now = _BEGAN_AT + timedelta(seconds=seconds * n)
        return form.format(now, now)

    return _lines_in_front(line, talk, rng)


def _name_request(talk: Talk, rng: Random) -> Broken | None:
    ids = [UUID(int=rng.getrandbits(128)) for _ in talk]
    return _lines_in_front(lambda n: f"Request {ids[n]}", talk, rng)


def _count_requests(talk: Talk, rng: Random) -> Broken | None:
    return _lines_in_front(lambda n: f"This is step {n + 1} of at most 50.", talk, rng)


def _name_run(talk: Talk, rng: Random) -> Broken:
    line = f"Session: {UUID(int=rng.getrandbits(128))}"
    return Broken(
        [with_system(turn, f"{line}\n{SYSTEM}") for turn in talk], [Spot(0, "messages[0].content", 0, len(line))]
    )


def _refresh_opening(talk: Talk, rng: Random) -> Broken | None:
    """The files that are open stand before the first thing that the user said."""
    files = [f"Open files: {', '.join(rng.sample(('a.py', 'b.py', 'lib.py', 'main.py', 'x.md'), 3))}" for _ in talk]
    broken, spots = [], []
    for n, turn in enumerate(talk):
        first, user, *rest = turn.messages
        broken.append(turn.say([first, user | {"content": f"{files[n]}\n\n{user['content']}"}, *rest]))
        if n and files[n] != files[n - 1]:
            spots.append(Spot(n, "messages[1].content", 0, len(files[n])))
    return Broken(broken, spots) if spots else None


def _time_in_tool(talk: Talk, rng: Random) -> Broken | None:
    index = rng.randrange(len(talk[0].body["tools"]))
    broken = []
    for n, turn in enumerate(talk):
        tools = [*turn.body["tools"]]
        function = tools[index]["function"]
        now = f" (as of {_BEGAN_AT + timedelta(seconds=n):%H:%M:%S})"
        tools[index] = tools[index] | {"function": function | {"description": function.get("description", "") + now}}
        broken.append(with_tools(turn, tools))
    return Broken(broken, [Spot(n, f"tools[{index}]") for n in range(1, len(talk))])


def _shuffle_tools(talk: Talk, rng: Random) -> Broken | None:
    broken, spots, before = [], [], [*talk[0].body["tools"]]
    for n, turn in enumerate(talk):
        tools = rng.sample(turn.body["tools"], len(turn.body["tools"])) if n else before
        moved = next((i for i, (then, now) in enumerate(zip(before, tools, strict=True)) if then != now), None)
        if moved is not None:
            spots.append(Spot(n, f"tools[{moved}]"))
        broken.append(with_tools(turn, tools))
        before = tools
    return Broken(broken, spots) if spots else None


def _shuffle_keys(talk: Talk, rng: Random) -> Broken | None:
    index = rng.randrange(len(talk[0].body["tools"]))
    broken, spots = [], []
    for n, turn in enumerate(talk):
        tools = [*turn.body["tools"]]
        function = tools[index]["function"]
        schema = {**function["parameters"], "additionalProperties": False}
        keys = [*schema][:: 1 if n % 2 else -1]
        tools[index] = tools[index] | {"function": function | {"parameters": {key: schema[key] for key in keys}}}
        broken.append(with_tools(turn, tools))
        if n:
            spots.append(Spot(n, f"tools[{index}]"))
    return Broken(broken, spots) if spots else None


def _add_tool(talk: Talk, rng: Random) -> Broken | None:
    if len(talk) < 2:
        return None
    since, index = rng.randrange(1, len(talk)), rng.randrange(len(talk[0].body["tools"]))
    broken = []
    for n, turn in enumerate(talk):
        tools: Sequence[Json] = turn.body["tools"]
        broken.append(turn if n >= since else with_tools(turn, [*tools[:index], *tools[index + 1 :]]))
    return Broken(broken, [Spot(since, f"tools[{index}]")])


def _reword_tool(talk: Talk, rng: Random) -> Broken | None:
    if len(talk) < 2:
        return None
    since, index = rng.randrange(1, len(talk)), rng.randrange(len(talk[0].body["tools"]))
    broken = []
    for n, turn in enumerate(talk):
        tools = [*turn.body["tools"]]
        words = "Only for those who were told so." if n >= since else "For everyone."
        tools[index] = tools[index] | {"function": tools[index]["function"] | {"description": words}}
        broken.append(with_tools(turn, tools))
    return Broken(broken, [Spot(since, f"tools[{index}]")])


def _heard(talk: Talk, min_chars: int, *, with_opening: bool = False) -> list[tuple[int, int]]:
    """Which message, behind the first answer, was heard in time to be sent twice; and in which request it is second."""
    said, begin = talk[-1].messages, 1 if with_opening else len(talk[0].messages)
    found = []
    for i in range(begin, len(said)):
        numbers = [n for n, turn in enumerate(talk) if len(turn.messages) > i]
        if said[i]["role"] in ("user", "tool") and len(said[i].get("content") or "") >= min_chars and len(numbers) > 1:
            found.append((i, numbers[1]))
    return found


def _from(since: int, talk: Talk, change: Callable[[list[Json]], list[Json]]) -> Talk:
    return [turn.say(change(turn.messages)) if n >= since else turn for n, turn in enumerate(talk)]


def _shorten(talk: Talk, rng: Random) -> Broken | None:
    """What was heard is cut down once the model has seen it."""
    if not (heard := _heard(talk, 40)):
        return None
    index, since = rng.choice(heard)

    def cut(messages: list[Json]) -> list[Json]:
        messages[index] = messages[index] | {"content": "[Old content was cleared.]"}
        return messages

    return Broken(_from(since, talk, cut), [Spot(since, f"messages[{index}].content")])


def _put_between(talk: Talk, rng: Random) -> Broken | None:
    if not (heard := _heard(talk, 1)):
        return None
    index, since = rng.choice(heard)
    memory = {"role": "user", "content": "What you should remember: the customer likes short answers."}
    broken = _from(since, talk, lambda messages: [*messages[:index], memory, *messages[index:]])
    return Broken(broken, [Spot(since, f"messages[{index}].content")])


def _trim_middle(talk: Talk, rng: Random) -> Broken | None:
    """One message is left out, though what came behind it stays."""
    times = Counter(message.get("content") for message in talk[-1].messages)
    heard = [(i, n) for i, n in _heard(talk, 1) if times[talk[-1].messages[i]["content"]] == 1]
    if not heard:
        return None
    index, since = rng.choice(heard)
    broken = _from(since, talk, lambda messages: [*messages[:index], *messages[index + 1 :]])
    return Broken(broken, [Spot(since, _path_at(broken[since], index))])


def _slide(talk: Talk, rng: Random) -> Broken | None:
    """The oldest are forgotten, one turn more with every request."""
    if len(talk) < 3:
        return None
    size, broken, spots = rng.choice([4, 6, 10]), [], []
    for n, turn in enumerate(talk):
        first, *rest = turn.messages
        broken.append(turn.say([first, *rest[-size:]]))
        before = [*broken[n - 1].messages, broken[n - 1].answer] if n else []
        if n and len(rest) > size and any(message in rest[-size:] for message in before):
            same = takewhile(lambda pair: pair[0] == pair[1], zip(before, broken[n].messages, strict=False))
            num_same = sum(1 for _ in same)
            if num_same < len(broken[n].messages):  # in a loop, what goes may be what comes
                spots.append(Spot(n, _path_at(broken[n], num_same)))
    return Broken(broken, spots) if spots else None


def _path_at(turn: Turn, index: int) -> str:
    """Where the first words of a message are."""
    messages = turn.messages
    is_call = not messages[index].get("content") and messages[index]["role"] == "assistant"
    return f"messages[{index}]" + (".tool_calls[0].function.arguments" if is_call else ".content")


def _forget_thoughts(talk: Talk, rng: Random) -> Broken | None:
    spots = [
        Spot(n, _path_at(turn, len(talk[n - 1].messages)))
        for n, turn in enumerate(talk)
        if n and turn.messages[len(talk[n - 1].messages) :]
    ]
    thinking = [Turn(turn.body, turn.answer | {"reasoning_content": _THOUGHT * rng.randrange(1, 9)}) for turn in talk]
    return Broken(thinking, spots) if spots else None


def _grow_system(talk: Talk, rng: Random) -> Broken | None:
    if len(talk) < 2:
        return None
    since, late = rng.randrange(1, len(talk)), "\n\nThe customer has been verified. Keep it short from now on."
    broken = [with_system(turn, system_of(turn) + late) if n >= since else turn for n, turn in enumerate(talk)]
    begin = len(system_of(talk[0]))
    return Broken(broken, [Spot(since, "messages[0].content", begin, begin + len(late))])


def _second_system(talk: Talk, rng: Random) -> Broken | None:
    if len(talk) < 2:
        return None
    since, late = rng.randrange(1, len(talk)), {"role": "system", "content": "The customer has been verified."}
    broken = _from(since, talk, lambda messages: [messages[0], late, *messages[1:]])
    return Broken(broken, [Spot(since, "messages[1].content")])


def _late_system(talk: Talk, rng: Random) -> Broken | None:
    """It comes with something new, and stays where it is."""
    if len(talk) < 2:
        return None
    since = rng.randrange(1, len(talk))
    index, late = len(talk[since].messages), {"role": "system", "content": "Keep it short from now on."}
    broken = _from(since, talk, lambda messages: [*messages[:index], late, *messages[index:]])
    return Broken(broken, [Spot(since, f"messages[{index}].content")])


def _rewrite_arguments(talk: Talk, rng: Random) -> Broken | None:
    """They are parsed and written anew, with other spaces than the model's."""
    spots = []
    for n in range(1, len(talk)):
        index = len(talk[n - 1].messages)
        for i, call in enumerate(talk[n - 1].answer.get("tool_calls", ())):
            if _write(call["function"]["arguments"]) != call["function"]["arguments"]:
                spots.append(Spot(n, f"messages[{index}].tool_calls[{i}].function.arguments"))
    broken = [turn.say([_rewrite(message) for message in turn.messages]) for turn in talk]
    return Broken(broken, spots) if spots else None


def _rewrite(message: Json) -> Json:
    calls = [
        call | {"function": call["function"] | {"arguments": _write(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return message | {"tool_calls": calls} if calls else message


def _write(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=1)
    except ValueError:
        return arguments


def _strip_answers(talk: Talk, rng: Random) -> Broken | None:
    """The model ends what it says with an empty line, and the client cuts it off."""
    spots = [
        Spot(n, f"messages[{len(talk[n - 1].messages)}].content")
        for n in range(1, len(talk))
        if talk[n - 1].answer.get("content")
    ]
    spoken = [
        Turn(turn.body, turn.answer | {"content": f"{turn.answer['content']}\n\n"})
        if turn.answer.get("content")
        else turn
        for turn in talk
    ]
    return Broken(spoken, spots) if spots else None


def _cut_otherwise(talk: Talk, rng: Random) -> Broken | None:
    """By its usage the server found each prompt again and all answers but one."""
    if len(talk) < 3:
        return None
    missed, num_said = rng.randrange(1, len(talk)), 0
    told: list[tuple[int, int, int]] = []
    for n, turn in enumerate(talk):
        num_prompt = len(json.dumps(turn.body)) // 4
        num_cached = 0 if not n else (told[-1][0] + (0 if n == missed else num_said)) // 16 * 16
        num_said = 64 + len(json.dumps(turn.answer)) // 4
        told.append((num_prompt, num_cached, num_said))
    broken = [replace(turn, response=_usage(turn, *numbers)) for turn, numbers in zip(talk, told, strict=True)]
    return Broken(broken, [Spot(missed, _path_at(talk[missed], len(talk[missed - 1].messages)))])


def _usage(turn: Turn, num_prompt: int, num_cached: int, num_output: int) -> Json:
    details = {"cached_tokens": num_cached}
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_output, "prompt_tokens_details": details}
    return {"choices": [{"message": turn.answer}], "usage": usage}


PREFIXES = (
    Breaker("none", "", lambda talk, rng: Broken(talk, [])),
    Breaker("words in front", "HL001", _tell_cart),
    Breaker("words in the first message", "HL001", _refresh_opening),
    Breaker("time", "HL002", _tell_time),
    Breaker("id of the request", "HL002", _name_request),
    Breaker("counter", "HL002", _count_requests),
    Breaker("id of the conversation", "HL002", _name_run, is_between_runs=True),
    Breaker("time in a tool", "HL002", _time_in_tool),
    Breaker("tool order", "HL003", _shuffle_tools),
    Breaker("key order", "HL004", _shuffle_keys),
    Breaker("tool added", "HL005", _add_tool),
    Breaker("tool reworded", "HL005", _reword_tool),
    Breaker("message shortened", "HL006", _shorten),
    Breaker("message put between", "HL006", _put_between),
    Breaker("message left out", "HL007", _trim_middle),
    Breaker("sliding window", "HL007", _slide),
    Breaker("thinking dropped", "HL008", _forget_thoughts),
    Breaker("system text grows", "HL009", _grow_system),
    Breaker("second system text", "HL009", _second_system),
    Breaker("late system turn", "HL009", _late_system),
    Breaker("arguments rewritten", "HL010", _rewrite_arguments),
    Breaker("answers stripped", "HL010", _strip_answers),
    Breaker("other tokens", "HL010", _cut_otherwise),
)
