"""What differs between a request and the one before it."""

from hypothesis import given
from hypothesis import strategies as st
from tests.lint.stories import lint_chat

from hotloop.lint.change import count_common, edit, is_same_json
from hotloop.lint.parts import Part
from hotloop.lint.reuse import Reach, Seen


def steps(change=lambda body, number: body):
    (run,) = lint_chat(change).runs
    return run.steps


def test_a_conversation_that_goes_on_has_no_changes():
    assert [step.changes for step in steps()] == [()] * 4
    assert [step.num_lost for step in steps()] == [0] * 4


@given(st.text("ab", max_size=8), st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_common_characters_are_counted(start, one, other):
    num = count_common(start + one, start + other)
    assert (start + one)[:num] == (start + other)[:num]
    assert num == min(len(start + one), len(start + other)) or (start + one)[num] != (start + other)[num]


@given(st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_an_edit_is_put_back_together(old, new):
    change = edit(Part("text", "a", old), Part("text", "b", new), 0)
    assert old[: change.begin] + change.new_words + old[change.old_end :] == new
    assert new[: change.begin] + change.old_words + new[change.end :] == old


def test_json_is_the_same_in_any_order_but_that_of_lists():
    assert is_same_json('{"a": 1, "required": ["x", "y"]}', '{"required":["y","x"],"a":1}')
    assert not is_same_json('{"enum": [1, 2]}', '{"enum": [2, 1]}')
    assert not is_same_json("{", "{")


def test_a_removed_message_is_found_where_it_stood():
    def drop(body, number):
        return body | {"messages": body["messages"][:1] + body["messages"][2:]} if number > 1 else body

    change = steps(drop)[2].changes[0]
    assert (change.kind, change.old_words[:5], change.is_tail) == ("removed", "Hello", False)


def test_a_request_that_goes_back_loses_nothing():
    """An answer that was not taken up, as when a user asks again."""
    (run,) = lint_chat(lambda body, number: body).runs
    shorter = lint_chat(lambda body, number: body | {"messages": body["messages"][:4]} if number == 3 else body)
    assert shorter.num_recomputed == 0
    assert not [f for f in shorter.findings if f.severity > 1]
    assert len(run.steps) == 4


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=5), max_size=5), st.lists(st.sampled_from("abcd"), max_size=5)
)
def test_a_tree_knows_the_longest_beginning(prompts, prompt):
    def parts(texts):
        return [Part("text", "", text) for text in texts]

    seen = Seen()
    for texts in prompts:
        seen.add(parts(texts))
    common = [
        next((i for i, (a, b) in enumerate(zip(p, prompt, strict=False)) if a != b), min(len(p), len(prompt)))
        for p in prompts
    ]
    assert seen.reach(parts(prompt)) == Reach(max(common, default=0))


def test_a_tree_knows_the_beginning_of_a_part():
    seen = Seen()
    seen.add([Part("text", "", "abcdef")])
    assert seen.reach([Part("text", "", "abcxyz")]) == Reach(0, 3)
    assert seen.reach([Part("system", "", "abcxyz")]) == Reach(0, 0)
