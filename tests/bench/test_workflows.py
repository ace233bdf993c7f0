"""Generated workflows."""

import itertools
import json

from hotloop.bench.questions import follows_schema, is_right
from hotloop.bench.workflows import generate_workflows
from hotloop.core.message import ToolCall


def test_equal_seeds_give_equal_workflows_and_others_the_same_steps_with_new_values():
    first, again, other = generate_workflows(1), generate_workflows(1), generate_workflows(2)
    assert first == again
    assert len(first) == 48
    assert [list(q.expected[0]) for q in first] == [list(q.expected[0]) for q in other]
    assert all(a.messages[1] != b.messages[1] for a, b in zip(first, other, strict=True))
    assert all(a.tools == b.tools for a, b in zip(first, other, strict=True))
    assert len({question.id for question in first + other}) == 96


def test_every_turn_goes_on_where_the_one_before_ended():
    questions = generate_workflows(0, num_workflows=3)
    assert len(questions) == 12
    for start in range(0, 12, 4):
        turns = questions[start : start + 4]
        for turn, following in itertools.pairwise(turns):
            assert following.messages[: len(turn.messages)] == turn.messages
            assert [message["role"] for message in following.messages[-2:]] == ["assistant", "tool"]


def test_the_key_is_valid_and_its_values_were_said_before():
    for question in generate_workflows(3):
        ((name, arguments),) = question.expected[0].items()
        values = {field: options[0] for field, options in arguments.items()}
        call = ToolCall("call_0", name, json.dumps(values))
        assert follows_schema(question, call)
        assert is_right(question, [call])
        said = question.messages[-1]["content"]
        assert all(str(value) in said for value in values.values()), (question.id, said, values)
