"""What placement thinks of sessions that are handed on from a replica that drains."""

from hotloop.router.placement.placement import Placement
from hotloop.router.placement.policy import PromptDigest, prefix

KEY = b"".join(i.to_bytes(8) for i in range(40))


def placement_of(*names: str) -> Placement:
    placement = Placement(prefix, block_tokens=128, seed=0)
    for name in names:
        placement.add_replica(name, capacity_tokens=100_000)
    return placement


def put(placement: Placement, session: str, key: bytes = KEY, among: tuple[str, ...] = ("a", "b", "c")) -> str:
    ticket = placement.place(PromptDigest(key, 16 * len(key), 24, session), among=among)
    assert ticket
    placement.finish(ticket)
    placement.check()
    return ticket.choice.name


def test_a_session_goes_to_who_was_handed_it() -> None:
    placement = placement_of("a", "b", "c")
    home = put(placement, "s")
    left = tuple(name for name in "abc" if name != home)
    assert placement.sessions_at(home, 9) == ["s"]
    target = placement.next_home(left)
    placement.hand_on("s", home, target)
    placement.check()
    assert placement.sessions_at(home, 9) == []
    placement.forget_replica(home)
    ticket = placement.place(PromptDigest(KEY + b"more!!!!", 5300, 24, "s"), among=left)
    assert ticket
    assert (ticket.choice.name, ticket.choice.reason) == (target, "warm")


def test_one_that_went_elsewhere_meanwhile_stays_there() -> None:
    placement = placement_of("a", "b", "c")
    home = put(placement, "s")
    others = tuple(name for name in "abc" if name != home)
    elsewhere = put(placement, "s", among=others[:1])
    placement.hand_on("s", home, others[1])
    assert placement.is_at("s", elsewhere)
    placement.hand_on("nobody", home, others[1])
    placement.hand_on("s", elsewhere, "gone")
    assert placement.is_at("s", elsewhere)


def test_who_has_fewest_sessions_is_next() -> None:
    placement = placement_of("a", "b")
    for session in ("s", "t", "u"):
        put(placement, session, among=("a",))
    assert placement.sessions_at("a", 2) == ["u", "t"], "the latest first"
    assert placement.next_home(("a", "b")) == "b"
    assert placement.next_home(("z",)) == ""
