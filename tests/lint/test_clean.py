"""What clients do for good reasons is no reason for a warning."""

import json
from itertools import chain, zip_longest

import pytest
from tests.lint.stories import (
    RULES,
    SYSTEM,
    TOOLS,
    assistant,
    bodies,
    call,
    exchanges,
    result,
    user,
)

from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.engine import lint
from hotloop.lint.finding import Severity
from hotloop.lint.meter import Meter

MARK = {"type": "ephemeral"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 400}}
LONG = "The driver wrote down what he saw, and he saw a lot of it. " * 30


def talk_about(thing, num_turns=4):
    """A user asks for one thing after another, and a tool is called for each."""
    said = [user(f"I have a few questions about {thing}.")]
    for i in range(num_turns):
        said += [
            assistant("", call("find", json.dumps({"id": f"{thing}-{i}", "why": "asked"}), f"c{i}")),
            result(f"{thing} number {i}: {LONG}", f"c{i}"),
            assistant(f"This is what I found about {thing} number {i}: all of it is fine."),
            user(f"And what about the next {thing}, which would be number {i + 1}?"),
        ]
    return [*said, assistant("That is all.")]


def interleaved(*conversations):
    rows = zip_longest(*conversations)
    return [pair for pair in chain.from_iterable(rows) if pair]


def conversations_at_once():
    return interleaved(*(bodies(talk_about(thing)) for thing in ("parcels", "letters", "invoices", "refunds")))


def the_same_request_twice():
    return [pair for pair in bodies(talk_about("parcels")) for _ in range(2)]


def an_answer_asked_for_again():
    """The last thing said is edited, and the answer to it is another."""
    pairs = bodies(talk_about("parcels"))
    body, _ = pairs[4]
    *rest, _ = body["messages"]
    edited = body | {"messages": [*rest, user("No, wait. What about the letters, of which there should be three?")]}
    return [
        *pairs[:5],
        (edited, assistant("There are three of them.")),
        *bodies_after(edited, "There are three of them."),
    ]


def bodies_after(body, answer):
    said = [*body["messages"], assistant(answer), user("Thanks, that is all that I wanted to know about them.")]
    return [(body | {"messages": said}, assistant("You are welcome."))]


def branches_of_one_conversation():
    """Four ways to go on from the same point, taken in turn."""
    trunk = talk_about("parcels", 3)[:-1]
    ways = [[*trunk, assistant(f"Way {i}: let us see."), *talk_about(f"way {i}", 2)] for i in range(4)]
    taken = [bodies(way) for way in ways]
    shared = len(bodies(trunk))
    return [*taken[0][:shared], *interleaved(*(pairs[shared:] for pairs in taken))]


def an_agent_in_an_agent():
    """A tool of the one is a conversation of the other, in the middle of its turn."""
    outer, inner = bodies(talk_about("parcels")), []
    for i, pair in enumerate(outer):
        inner.append(pair)
        if i % 2 == 0:
            inner += bodies(talk_about(f"detail {i}", 2), system=f"You only look things up.\n{RULES}", tools=TOOLS[1:3])
    return inner


def a_title_beside_the_conversation():
    pairs = bodies(talk_about("parcels"))
    ask = {
        "model": "tiny",
        "messages": [{"role": "system", "content": f"Name it.\n{RULES}"}, *pairs[0][0]["messages"][1:]],
    }
    return [pairs[0], (ask, assistant("Questions about parcels")), *pairs[1:]]


def phases_with_tools_of_their_own():
    """One conversation plans, another one acts upon the plan."""
    plan = bodies(talk_about("plans"), tools=TOOLS[:2])
    act = bodies([user(f"The plan: {LONG}"), *talk_about("deeds")[1:]], tools=TOOLS[2:])
    return [*plan, *act]


def another_agent_takes_over():
    """The history is handed on to one with other instructions and tools."""
    said = talk_about("parcels")
    first, second = (
        bodies(said[:9]),
        bodies(said, system="You give money back. " + "Ask for the number first. " * 60, tools=TOOLS[3:]),
    )
    return [*first, *second[len(first) :]]


def all_of_it_is_summed_up():
    pairs = bodies(talk_about("parcels"))
    said = [user(f"What was said so far, in short: {LONG}"), *talk_about("letters")]
    return [*pairs, *bodies(said)]


def summed_up_but_for_the_newest():
    """Once, when it had become long: the summary stands for all but the last two turns."""
    said = talk_about("parcels", 8)
    pairs, later = bodies(said[:-1]), said[-4:]
    return [*pairs, *bodies([user(f"In short: {LONG}"), *later])[-1:]]


def many_short_questions():
    return [pair for i in range(20) for pair in bodies([user(f"Is {i} prime?"), assistant("No")], tools=[])]


def pictures():
    first = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}
    return bodies([first, *talk_about("pictures")[1:]])


def pieces_in_place_of_a_text():
    """The same words, once as a string and then as a list of pieces."""

    def in_pieces(message):
        content = message["content"]
        return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message

    return [
        (body | {"messages": [*map(in_pieces, body["messages"])]} if i % 2 else body, answer)
        for i, (body, answer) in enumerate(bodies(talk_about("parcels")))
    ]


def results_in_another_order_than_their_calls():
    calls = [call("find", json.dumps({"id": str(i), "why": "asked"}), f"c{i}") for i in range(3)]
    said = [user("Look at all three."), assistant("", *calls)]
    said += [result(f"number {i}: {LONG}", f"c{i}") for i in (2, 0, 1)]
    return bodies([*said, *talk_about("more")[1:]])


def an_answer_that_was_begun_for_the_model():
    """The beginning of the answer is sent along, and comes back as one with what the model wrote."""
    pairs = []
    for i in range(3):
        said = [user(f"Write JSON about the number {i}, please, as long as you like."), assistant('{"a":')]
        before = pairs[-1][0]["messages"] if pairs else [{"role": "system", "content": SYSTEM}]
        whole = [*before[:-1], assistant('{"a":' + f" {i - 1}}}")] if pairs else before
        pairs.append(({"model": "tiny", "messages": [*whole, *said]}, assistant(f" {i}}}")))
    return pairs


def a_day_later():
    """The date is in the system text, and a conversation begins on another day."""
    return [
        pair for day in (9, 9, 10) for pair in bodies(talk_about(f"day {day}"), system=f"Today is June {day}.\n{RULES}")
    ]


def another_customer_in_each_conversation():
    return [
        pair
        for name in ("Anna", "Bert", "Carl")
        for pair in bodies(talk_about(name), system=f"{RULES}\nYou talk to {name}.")
    ]


SCENES = (
    conversations_at_once,
    the_same_request_twice,
    an_answer_asked_for_again,
    branches_of_one_conversation,
    an_agent_in_an_agent,
    a_title_beside_the_conversation,
    phases_with_tools_of_their_own,
    another_agent_takes_over,
    all_of_it_is_summed_up,
    summed_up_but_for_the_newest,
    many_short_questions,
    pictures,
    pieces_in_place_of_a_text,
    results_in_another_order_than_their_calls,
    an_answer_that_was_begun_for_the_model,
    a_day_later,
    another_customer_in_each_conversation,
)


def warnings(pairs, **more):
    found = lint(sort_into_runs(exchanges(pairs, **more), Meter())).findings
    return [f"{f.rule} {f.place}: {f.words}" for f in found if f.severity > Severity.NOTE]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("has_answers", [True, False], ids=["answers", "requests alone"])
def test_no_warnings(scene, has_answers):
    pairs = scene()
    assert warnings(pairs if has_answers else [(body, {}) for body, _ in pairs]) == []


def ask_messages(said, *, system, **more):
    return {"model": "claude-sonnet-4", "max_tokens": 100, "system": system, "messages": [*said], **more}


def marked(body):
    """Breakpoints at the end of the system text and of the newest message, and on no other."""
    *rest, last = body["messages"]
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    system = [{"type": "text", "text": body["system"], "cache_control": MARK}]
    newest = last | {"content": [*blocks[:-1], blocks[-1] | {"cache_control": MARK}]}
    return body | {"system": system, "messages": [*rest, newest]}


def breakpoints_that_move_along():
    """What was marked as a block before is a plain text again."""
    pairs, said = [], []
    for i in range(5):
        said.append({"role": "user", "content": f"Question {i}. {LONG}"})
        answer = {"role": "assistant", "content": [{"type": "text", "text": f"Answer {i}, for what it is worth."}]}
        pairs.append((marked(ask_messages(said, system=SYSTEM)), answer))
        said.append(answer)
    return pairs


def thoughts_that_come_back_in_a_loop_and_go_after_it():
    """As Anthropic asks for it: thinking is kept until the user has spoken again."""
    pairs, said = [], [{"role": "user", "content": "Look it up."}]
    for i in range(6):
        thinking = {"type": "thinking", "thinking": f"Hm, number {i}. {LONG}", "signature": "x" * 80}
        use = {"type": "tool_use", "id": f"t{i}", "name": "look", "input": {"number": i}}
        answer = {"role": "assistant", "content": [thinking, use]}
        pairs.append((marked(ask_messages(said, system=SYSTEM)), answer))
        said = [
            *said,
            answer,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{i}", "content": LONG}]},
        ]
    said = [m | {"content": [b for b in m["content"] if isinstance(b, str) or b["type"] != "thinking"]} for m in said]
    said[0] = {"role": "user", "content": "Look it up."}
    said = [*said, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
    return [*pairs, (marked(ask_messages(said, system=SYSTEM)), {"role": "assistant", "content": "Welcome."})]


def blocks_of_the_servers_own_tools():
    """They come back with fields that were not there, and are null."""
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "parcels"}}
    hits = {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [{"type": "web_search_result", "url": "u"}],
    }
    answer = {"role": "assistant", "content": [search, hits, {"type": "text", "text": f"This is what I found: {LONG}"}]}
    back = answer | {"content": [block | {"caller": None, "citations": None} for block in answer["content"]]}
    said = [{"role": "user", "content": "Search for it."}]
    later = [*said, back, {"role": "user", "content": f"Tell me more. {LONG}"}]
    return [
        (marked(ask_messages(said, system=SYSTEM)), answer),
        (marked(ask_messages(later, system=SYSTEM)), {"role": "assistant", "content": "No."}),
        (marked(ask_messages([*later, {"role": "assistant", "content": "No."}, *said], system=SYSTEM)), {}),
    ]


def respond(number, items):
    return {"id": f"r{number}", "output": items}


def said_item(text):
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def responses_with_all_of_the_input():
    pairs, items = [], [{"role": "user", "content": "Look at all of them."}]
    for i in range(5):
        thought = {"type": "reasoning", "id": f"rs{i}", "summary": [], "encrypted_content": "x" * 200 + str(i)}
        made = {
            "type": "function_call",
            "call_id": f"c{i}",
            "name": "look",
            "arguments": '{"n": ' + str(i) + "}",
            "id": "f",
        }
        body = {"model": "gpt-5", "instructions": SYSTEM, "store": False, "input": [*items]}
        pairs.append((body, respond(i, [thought, made])))
        items += [thought, made, {"type": "function_call_output", "call_id": f"c{i}", "output": LONG}]
    return pairs


def responses_that_branch():
    """Several go on from the same one, which the server has kept."""
    first = {"model": "gpt-5", "instructions": SYSTEM, "input": "Look at all of them."}
    pairs = [(first, respond(0, [said_item("Fine.")]))]
    for i in range(1, 6):
        body = first | {"input": f"And number {i}? {LONG}", "previous_response_id": f"r{(i - 1) // 2}"}
        pairs.append((body, respond(i, [said_item(f"Number {i} is fine.")])))
    return pairs


@pytest.mark.parametrize(
    "scene",
    [
        breakpoints_that_move_along,
        thoughts_that_come_back_in_a_loop_and_go_after_it,
        blocks_of_the_servers_own_tools,
        responses_with_all_of_the_input,
        responses_that_branch,
    ],
    ids=lambda scene: scene.__name__,
)
def test_no_warnings_by_other_apis(scene):
    assert warnings(scene()) == []
