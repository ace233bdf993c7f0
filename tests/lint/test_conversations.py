"""Requests find their conversations."""

from dataclasses import replace

from tests.lint.stories import TALK, TOOLS, assistant, bodies, exchanges, user

from hotloop.lint.conversations import sort_into_runs
from hotloop.lint.meter import Meter

OTHER = [user("I want to change my address."), assistant("To which one?"), user("Elm street 4."), assistant("Done.")]


def sizes(found):
    return [len(run.steps) for run in sort_into_runs(found, Meter())]


def test_conversations_that_alternate_are_told_apart():
    one, other = exchanges(bodies()), exchanges(bodies(OTHER))
    mixed = [one[0], other[0], one[1], other[1], one[2], one[3]]
    assert sizes(mixed) == [4, 2]


def test_a_clock_in_the_system_text_does_not_part_a_conversation():
    def tell_time(body, number):
        system, *rest = body["messages"]
        return body | {"messages": [system | {"content": f"{number} {system['content']}"}, *rest]}

    assert sizes(exchanges(bodies(), tell_time)) == [4]


def test_a_history_that_was_trimmed_goes_on():
    def trim(body, number):
        return body | {"messages": [body["messages"][0], *body["messages"][-3:]]}

    assert sizes(exchanges(bodies(), trim)) == [4]


def test_the_same_question_twice_begins_twice():
    assert sizes(exchanges(bodies()[:1]) * 2) == [1, 1]


def test_sessions_keep_conversations_apart():
    found = exchanges(bodies())
    assert sizes([replace(each, session=str(i % 2)) for i, each in enumerate(found)]) == [2, 2]


def test_a_run_that_is_named_is_believed():
    found = [*exchanges(bodies(), run="a"), *exchanges(bodies(OTHER), run="a")]
    assert sizes(found) == [6]


def test_chained_responses_follow_their_ids():
    def response(i):
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {i}"}]}
        return {"id": f"r{i}", "output": [item]}

    first = {"model": "m", "input": "one", "store": True}
    pairs = [(first, response(0))]
    pairs += [(first | {"input": f"more {i}", "previous_response_id": f"r{i - 1}"}, response(i)) for i in (1, 2)]
    (run,) = sort_into_runs(exchanges(pairs), Meter())
    assert len(run.steps) == 3
    assert not any(step.changes for step in run.steps)


def test_beginnings_that_are_alike_are_compared():
    found = [*exchanges(bodies()), *exchanges(bodies(OTHER, tools=TOOLS[::-1]))]
    second = sort_into_runs(found, Meter())[1].steps[0]
    assert second.is_first
    assert [change.kind for change in second.changes] == ["moved"]


def test_other_agents_are_not_compared():
    found = [*exchanges(bodies()), *exchanges(bodies(TALK, system="Be brief.", tools=[]))]
    assert sort_into_runs(found, Meter())[1].steps[0].before is None


def test_files_have_nothing_to_do_with_each_other():
    one, other = exchanges(bodies(), source="a"), exchanges(bodies(tools=TOOLS[::-1]), source="b")
    assert sizes([*one, *other[2:]]) == [4, 2]
    assert sort_into_runs([*one, *other], Meter())[1].steps[0].before is None


def test_a_branch_begins_a_conversation():
    """All before what is new has been said just so, but not last."""
    found = exchanges(bodies())
    body, *_ = (each.body for each in found[1:2])
    other = body | {"messages": [*body["messages"][:-1], user("Something else, if you please.")]}
    assert sizes([*found, *exchanges([(other, {})])]) == [4, 1]


def test_a_window_that_slides_in_one_of_two_that_are_much_alike():
    """What comes next goes on from the newest there was, and its answer."""

    def slide(body, number):
        return body | {"messages": [body["messages"][0], *body["messages"][-3:]]}

    again = [*TALK[:-1], assistant("Fine: the money is on its way.")]
    one, other = exchanges(bodies(), slide), exchanges(bodies(again), slide)
    assert sizes([*one[:2], *other, *one[2:]]) == [4, 4]
