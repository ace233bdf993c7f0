from hotloop.core.session import MAX_SESSION_ID, name_session


def test_a_session_of_a_long_name_is_known_by_its_hash():
    long = "x" * 10_000_000
    names = {name_session(long + end, {}, None, None) for end in ("", "a", "b", "\ud800")}
    assert len(names) == 4, "two that begin alike are still two"
    assert all(len(name) <= MAX_SESSION_ID for name in names)
    assert name_session(None, {"x-session-id": long}, None, None) == name_session(None, {}, None, long)
    assert name_session("x" * MAX_SESSION_ID, {}, None, None) == "x" * MAX_SESSION_ID
