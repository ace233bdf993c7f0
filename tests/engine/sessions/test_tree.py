"""Which session works for which, who is charged for it, and what is freed when it is over."""

import hypothesis.strategies as st
from hypothesis import given
from tests.engine.turning import Loop, make_scheduler, prompt

from hotloop.core.request import Priority, Request
from hotloop.core.retention import Hold, HoldKind
from hotloop.engine.sessions.tree import MAX_DEPTH, MAX_SESSIONS, SessionTree


def test_a_session_has_the_root_of_its_parent() -> None:
    tree = SessionTree()
    assert [tree.add("root", ""), tree.add("a", "root"), tree.add("a1", "a"), tree.add("b", "root")] == ["root"] * 4
    assert tree.add("", "a1") == "root", "a request without a session is its parent's"
    assert tree.add("", "") == ""
    assert sorted(tree.below("a")) == ["a", "a1"]
    assert (tree.above("root"), tree.above("a1"), tree.above("unknown")) == ((), ("root", "a"), ())
    tree.forget("a1")
    assert tree.below("a") == ["a"]


def test_a_session_keeps_its_first_parent_and_is_never_above_itself() -> None:
    tree = SessionTree()
    tree.add("a", "b")
    assert tree.add("a", "c") == "b"
    assert tree.add("b", "a") == "b"
    assert tree.add("d", "d") == "d"


def test_trees_are_bounded() -> None:
    tree = SessionTree()
    roots = [tree.add(f"s{i + 1}", f"s{i}") for i in range(10 * MAX_DEPTH)]
    assert len(set(roots)) > 1
    for i in range(2 * MAX_SESSIONS):
        tree.add(f"x{i}", "p")
    assert len(tree.below("p")) <= 1 + MAX_SESSIONS


@given(st.lists(st.tuples(*[st.sampled_from(["", *"abcdef"])] * 2), max_size=60))
def test_any_names_have_a_root(pairs: list[tuple[str, str]]) -> None:
    tree = SessionTree()
    for name, parent in pairs:
        root = tree.add(name, parent)
        assert bool(root) == bool(name or parent)
        assert tree.add(root, "") == root
        assert (name or parent) in tree.below(root) or not root


def add(loop: Loop, name: str, first: int, session: str, parent: str = "", length: int = 20) -> Request:
    request = loop.add(name, prompt(length, first), Priority.INTERACTIVE)
    loop.scheduler.waiting.pop(request.id)
    request.session_id, request.parent_id = session, parent
    loop.scheduler.add(request)
    return request


def test_the_work_of_sub_agents_is_charged_to_who_it_is_done_for() -> None:
    loop = Loop(make_scheduler(num_blocks=256))
    for i in range(3):
        loop.finish_after(add(loop, f"sub{i}", 100 * i, f"sub{i}", "boss"))
    fairness = loop.scheduler.fairness
    assert fairness.attained("boss") > 0
    assert fairness.attained("sub0") == 0
    boss, other = add(loop, "boss", 1000, "boss"), add(loop, "other", 2000, "other")
    assert fairness.order([boss, other], []) == [other, boss]


def test_a_tree_may_be_held_to_so_many_requests_at_once() -> None:
    loop = Loop(make_scheduler(num_blocks=256, max_running_per_root=2))
    for i in range(4):
        add(loop, f"sub{i}", 100 * i, f"sub{i}", "boss")
    add(loop, "other", 900, "other")
    for _ in range(3):
        loop.step()
    assert sorted(loop.scheduler.running) == ["other", "sub0", "sub1"]
    loop.finish(loop.scheduler.running["sub0"])
    loop.step()
    assert "sub2" in loop.scheduler.running


def test_what_a_session_alone_has_is_free_once_it_is_closed_and_what_others_have_stays() -> None:
    loop = Loop(make_scheduler(num_blocks=256))
    loop.finish_after(add(loop, "a", 0, "a", length=40))
    loop.finish_after(add(loop, "b", 0, "b", length=20))  # begins as a's does
    loop.finish_after(add(loop, "sub", 500, "sub", "a", length=40))
    tree, pool = loop.scheduler.tree, loop.scheduler.pool
    num_free = pool.num_free
    assert loop.scheduler.sessions.close("a") == pool.num_free - num_free > 0
    loop.scheduler.check()
    assert len(tree.peek(add(loop, "again", 0, "", length=40).token_ids)) == 5, "the twenty tokens that b has as well"
    assert not tree.peek(add(loop, "sub again", 500, "", length=40).token_ids), "who worked for it is closed as well"
    assert loop.scheduler.sessions.close("nobody") == 0


def test_all_of_its_conversations_are_free_once_a_session_is_closed() -> None:
    loop = Loop(make_scheduler(num_blocks=256))
    for i in range(5):
        loop.finish_after(add(loop, f"a{i}", 100 * i, "a", length=40))
    loop.finish_after(add(loop, "b", 300, "b", length=40))  # has one of them as well
    assert loop.scheduler.sessions.close("a") >= 4 * 10
    loop.scheduler.check()
    peeked = [len(loop.scheduler.tree.peek(add(loop, f"c{i}", 100 * i, "", length=40).token_ids)) for i in range(5)]
    assert peeked == [0, 0, 0, 10, 0]


def test_what_is_pinned_outlives_its_session() -> None:
    loop = Loop(make_scheduler(num_blocks=256))
    loop.finish_after(add(loop, "a", 0, "a", length=40))
    request = add(loop, "pin", 0, "a", length=20)
    loop.finish_after(request)
    pin = Hold(HoldKind.PINNED, loop.scheduler.tree.retention.now + 100)
    loop.scheduler.sessions.hold(request.token_ids[:20], pin, "", "a")
    assert loop.scheduler.sessions.close("a") > 0
    loop.scheduler.check()
    assert len(loop.scheduler.tree.peek(request.token_ids[:20])) == 5


def test_a_session_with_a_request_goes_on() -> None:
    loop = Loop(make_scheduler(num_blocks=256))
    request = add(loop, "a", 0, "a", length=40)
    loop.step()
    assert loop.scheduler.sessions.close("a") == 0
    loop.finish_after(request)
