"""Sessions that are over, by their names."""

from tests.server.serving import Serving, check_error, until

LONG = "What is said here is long enough to fill a few blocks of the cache. " * 4


def num_cached(serving: Serving, session: str) -> int:
    answer = serving.chat(messages=[{"role": "user", "content": f"{session} {LONG}"}], max_tokens=1)
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def begin(serving: Serving, session: str, **fields: object) -> None:
    messages = [{"role": "user", "content": f"{session} {LONG}"}]
    assert serving.chat(messages=messages, max_tokens=4, session_id=session, **fields).status_code == 200
    until(lambda: serving.engine.stats().num_running == 0)


def test_a_session_that_is_closed_leaves_nothing_of_its_own() -> None:
    with Serving() as serving:
        begin(serving, "alpha")
        begin(serving, "sub", parent_session_id="alpha")
        closed = serving.http.post("/v1/sessions/alpha/close").json()
        assert (closed["id"], closed["object"]) == ("alpha", "session.closed")
        assert closed["freed_tokens"] > 2 * 200
        assert num_cached(serving, "sub") < 50
        assert serving.http.post("/v1/sessions/alpha/close").json()["freed_blocks"] == 0


def test_it_may_be_named_in_a_body_as_well_or_by_its_last_request() -> None:
    with Serving() as serving:
        begin(serving, "alpha")
        closed = serving.http.post("/close_session", json={"session_id": "alpha"}).json()
        assert closed["freed_blocks"] > 0
        check_error(serving.http.post("/close_session", json={"session_id": 3}), 400)
        messages = [{"role": "user", "content": f"beta {LONG}"}]
        headers = {"x-dynamo-session-id": "beta", "x-dynamo-session-final": "true"}
        body = {"messages": messages, "max_tokens": 2}
        assert serving.http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        until(lambda: "beta" not in serving.engine._core.scheduler.admission.admitted)
