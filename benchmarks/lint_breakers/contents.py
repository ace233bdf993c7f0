"""Breakers of content and of asking, HL011 to HL018: sent twice, chained, unmarked, or asked of too large a model."""

import json
from random import Random

from benchmarks.lint_breakers.talk import (
    SYSTEM,
    Breaker,
    Broken,
    Json,
    Spot,
    Talk,
    Turn,
    say_more,
    system_of,
    with_system,
)

_MARK = {"type": "ephemeral"}
_BOOK = "\n\n".join(f"Chapter {i}. " + f"What to do with parcel {i} when it rains, or snows. " * 15 for i in range(9))


def _paste_context(talk: Talk, rng: Random) -> Broken | None:
    """What the system text says is said again with something that the user says."""
    index, text = len(talk[0].messages) - 1, f"{_BOOK}\n\n{system_of(talk[0])}"
    broken = []
    for turn in talk:
        messages = [*with_system(turn, text).messages]
        messages[index] = messages[index] | {"content": f"{messages[index]['content']}\n\nContext:\n\n{_BOOK}"}
        broken.append(turn.say(messages))
    return Broken(broken, [Spot(len(talk) - 1, f"messages[{index}].content")])


def _whole_log(talk: Talk, rng: Random) -> Broken | None:
    said = talk[-1].messages
    numbers = {i: [n for n, turn in enumerate(talk) if len(turn.messages) > i] for i in range(len(said))}
    results = [i for i, message in enumerate(said) if message["role"] == "tool" and len(numbers[i]) >= 3]
    if not results:
        return None
    index = rng.choice(results)
    log = "\n".join(f"{rng.getrandbits(64):x} all is well" for _ in range(1500))
    broken = []
    for turn in talk:
        messages = turn.messages
        if len(messages) > index:
            messages[index] = messages[index] | {"content": log}
        broken.append(turn.say(messages))
    return Broken(broken, [Spot(len(talk) - 1, f"messages[{index}].content")])


def _call(name: str, /, **arguments: str) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def _result(text: str) -> Json:
    return {"role": "tool", "tool_call_id": "c", "content": text}


def _one_by_one(talk: Talk, rng: Random) -> Broken:
    ids = [f"{rng.randrange(10**7, 10**8)}" for _ in range(rng.randrange(2, 6))]
    more: list[Json] = [{"role": "user", "content": f"And what of {', '.join(ids)}?"}]
    for each in ids:
        more += [_call("get_order", id=each), _result(f"order {each} is fine")]
    index = len(talk[-1].messages) + 4
    broken = say_more(talk, [*more, {"role": "assistant", "content": "All are fine."}])
    return Broken(broken, [Spot(len(broken) - 1, f"messages[{index}].tool_calls[0].function.arguments")])


def _hand_on(talk: Talk, rng: Random) -> Broken:
    ids = [f"{name}-{rng.randrange(10**7, 10**8)}" for name in ("user", "order", "bill", "sum")]
    more: list[Json] = [{"role": "user", "content": "And what does Wilhelmina owe us?"}]
    more += [_call("find_user", name="Wilhelmina"), _result(json.dumps({"user": ids[0]}))]
    more += [_call("find_order", user=ids[0]), _result(json.dumps({"order": ids[1]}))]
    more += [_call("find_bill", order=ids[1]), _result(json.dumps({"bill": ids[2]}))]
    index = len(talk[-1].messages) + 4
    broken = say_more(talk, [*more, {"role": "assistant", "content": "Not a thing."}])
    return Broken(broken, [Spot(len(broken) - 1, f"messages[{index}].tool_calls[0].function.arguments")])


def _translate(turn: Turn) -> Turn:
    """The same by Anthropic's messages, with 6 kB of system text at least; every content is a list of blocks."""
    functions = (tool["function"] for tool in turn.body["tools"])
    system, *rest = turn.messages
    body = {
        "model": "claude-sonnet-4",
        "max_tokens": 100,
        "system": [{"type": "text", "text": f"{SYSTEM}\n{system['content']}"}],
        "tools": [{"name": f["name"], "input_schema": f.get("parameters", {})} for f in functions],
        "messages": [_translate_message(message) for message in rest],
    }
    return Turn(body, _translate_message(turn.answer))


def _translate_message(message: Json) -> Json:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": content}]}
    blocks: list[Json] = [{"type": "text", "text": content}] if content else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        blocks.append({"type": "tool_use", "id": "c", "name": function["name"], "input": _value(function["arguments"])})
    return {"role": message["role"], "content": blocks}


def _value(arguments: str) -> Json:
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _mark(block: Json) -> Json:
    return block | {"cache_control": _MARK}


def _mark_newest(body: Json) -> Json:
    *rest, last = body["messages"]
    return body | {"messages": [*rest, last | {"content": [*last["content"][:-1], _mark(last["content"][-1])]}]}


def _mark_system(body: Json) -> Json:
    return body | {"system": [*body["system"][:-1], _mark(body["system"][-1])]}


def _well_marked(talk: Talk, rng: Random) -> Broken:
    turns = map(_translate, talk)
    return Broken([Turn(_mark_newest(_mark_system(turn.body)), turn.answer) for turn in turns], [], "messages")


def _unmarked(talk: Talk, rng: Random) -> Broken | None:
    turns = [_translate(turn) for turn in talk]
    spots = [Spot(n, "system[0].text") for n in range(1, len(turns))]
    return Broken(turns, spots, "messages") if spots else None


def _five_marks(talk: Talk, rng: Random) -> Broken:
    turns = [_translate(turn) for turn in talk]
    pieces = [_mark({"type": "text", "text": f"Part {i}: {SYSTEM}"}) for i in range(5)]
    broken = [Turn(turn.body | {"system": pieces}, turn.answer) for turn in turns]
    return Broken(broken, [Spot(n, "system[4].text") for n in range(len(turns))], "messages")


def _mark_behind_change(talk: Talk, rng: Random) -> Broken | None:
    turns, broken = [_translate(turn) for turn in talk], []
    for n, turn in enumerate(turns):
        weather = _mark({"type": "text", "text": f"The weather is {('fair', 'foul', 'fine')[n % 3]}."})
        broken.append(Turn(turn.body | {"system": [*turn.body["system"], weather]}, turn.answer))
    spots = [Spot(n, "system[1].text") for n in range(1, len(turns))]
    return Broken(broken, spots, "messages") if spots else None


def _mark_stays(talk: Talk, rng: Random) -> Broken | None:
    """The system text is marked, and nothing of a history that grows long."""
    turns, broken = [_translate(turn) for turn in talk], []
    for turn in turns:
        first, *rest = turn.body["messages"]
        long = first | {"content": [*first["content"], {"type": "text", "text": _BOOK}]}
        broken.append(Turn(_mark_system(turn.body | {"messages": [long, *rest]}), turn.answer))
    spots = [Spot(n, "system[0].text") for n in range(1, len(turns))]
    return Broken(broken, spots, "messages") if spots else None


def _mark_too_early(talk: Talk, rng: Random) -> Broken:
    turns, broken = [_translate(turn) for turn in talk], []
    for turn in turns:
        head = _mark({"type": "text", "text": "You are kind."})
        body = {name: part for name, part in turn.body.items() if name != "tools"}
        broken.append(Turn(body | {"system": [head, *turn.body["system"]]}, turn.answer))
    return Broken(broken, [Spot(n, "system[0].text") for n in range(len(turns))], "messages")


def _large_model(talk: Talk, rng: Random) -> Broken:
    question = str(talk[0].messages[-1]["content"])[:400]
    messages = [{"role": "user", "content": f"Is this a complaint? Say yes or no.\n{question}"}]
    body = {"model": rng.choice(["gpt-5", "claude-opus-4-1", "gpt-4o"]), "messages": messages, "max_tokens": 4}
    return Broken([Turn(body, {"role": "assistant", "content": "No"})], [Spot(0, "model")])


def _nearly_enough(talk: Talk, rng: Random) -> Broken | None:
    """A short exchange behind a prompt of 950 tokens, with a model that caches from 1,024 on."""
    if len(talk) < 2:
        return None
    said: list[Json] = [{"role": "system", "content": "Be kind. " * rng.randrange(270, 310)}]
    broken = []
    for turn in talk[:2]:
        said.append({"role": "user", "content": str(turn.messages[-1]["content"])[-40:]})
        broken.append(Turn({"model": "gpt-5-mini", "messages": [*said]}, {"role": "assistant", "content": "Well."}))
        said.append(broken[-1].answer)
    return Broken(broken, [Spot(1, "messages[0].content")])


CONTENTS = (
    Breaker("context pasted twice", "HL011", _paste_context),
    Breaker("whole log as a result", "HL012", _whole_log),
    Breaker("independent calls chained", "HL013", _one_by_one),
    Breaker("results only handed on", "HL014", _hand_on),
    Breaker("well marked", "", _well_marked),
    Breaker("no cache_control", "HL015", _unmarked),
    Breaker("five breakpoints", "HL016", _five_marks),
    Breaker("breakpoint behind a change", "HL016", _mark_behind_change, also=frozenset({"HL001"})),
    Breaker("breakpoint stays behind", "HL016", _mark_stays),
    Breaker("breakpoint too early", "HL016", _mark_too_early),
    Breaker("large model", "HL017", _large_model),
    Breaker("just under the minimum", "HL018", _nearly_enough),
)
