"""The system's clock is set by years, back and forth, while all runs: nothing hangs, ends or is forgotten for it."""

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.engine.offload.disk.test_store import SIZE, data, fill, key, make_store
from tests.server.serving import Serving
from tests.trace.test_store import DAY_MS, a_run

from hotloop.trace.runs import TraceStore
from hotloop.trace.store import Bounds, StoreTracer

YEAR_S = 365.25 * 86400
SEED = 0


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Sets the clock that far from what it is."""
    offset_s = 0.0
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + offset_s)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(offset_s * 1e9))

    def set_to(seconds: float) -> None:
        nonlocal offset_s
        offset_s = seconds

    yield set_to
    offset_s = 0.0


def test_answers_sessions_holds_and_spans_do_not_mind(tmp_path: Path, jump: Callable[[float], None]) -> None:
    rng = random.Random(SEED)
    tracer = StoreTracer(tmp_path / "trace.db", bounds=Bounds(max_age_days=2.0))
    long = "What was said before and is kept for a while. " * 8
    with Serving(tracer=tracer) as serving:
        cached = []
        for number in range(30):
            jump(rng.choice((0.0, -YEAR_S, YEAR_S, -3600.0, 3600.0, -40 * YEAR_S, 40 * YEAR_S)))
            block = {"type": "text", "text": long, "cache_control": {"type": "ephemeral", "ttl": "5m"}}
            body = {"messages": [{"role": "user", "content": [block]}], "max_tokens": 2, "session_id": f"s{number % 3}"}
            answer = serving.http.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text
            cached.append(answer.json()["usage"]["cache_read_input_tokens"])
            assert serving.http.get("/v1/models").status_code == 200
            assert serving.http.get("/metrics").status_code == 200
            made = serving.http.post("/v1/responses", json={"input": f"{number}", "max_output_tokens": 2}).json()
            assert serving.http.get(f"/v1/responses/{made['id']}").json()["created_at"] > -1
        assert cached[0] == 0
        assert min(cached[1:]) > 100, "what is kept for five minutes was given up"
    tracer.close()
    jump(0.0)
    with TraceStore(tmp_path / "trace.db") as store:
        runs = store.runs(1000)
        spans = [span for run in runs for span in store.spans(run.trace_id)]
    assert len(spans) >= 60
    assert all(0 <= span.end_ns - span.start_ns < 60e9 for span in spans)


def test_no_run_is_deleted_because_the_clock_was_set(tmp_path: Path, jump: Callable[[float], None]) -> None:
    path = tmp_path / "trace.db"
    tracer = StoreTracer(path, bounds=Bounds(max_age_days=2.0))
    jump(YEAR_S)
    run = a_run(DAY_MS)
    for span in run:
        tracer.record(span)
    tracer.close()
    with TraceStore(path) as store:
        assert store.run(run[0].trace_id)


@pytest.mark.parametrize("ahead_s", [YEAR_S, -YEAR_S])
def test_what_is_used_last_stays_on_disk_whatever_the_clock_says(
    tmp_path: Path, jump: Callable[[float], None], ahead_s: float
) -> None:
    store = make_store(tmp_path, max_bytes=8 * (SIZE + 100))
    fill(store, range(4))
    jump(ahead_s)
    fill(store, range(4, 40))
    assert store.has(key(39)), "the last that was written went first"
    assert not store.has(key(0))
    store.close()


def test_what_was_used_when_the_clock_was_ahead_goes_in_its_turn(tmp_path: Path) -> None:
    store = make_store(tmp_path, max_bytes=8 * (SIZE + 100))
    store._folder.write(key(0), data(0), time.time() + YEAR_S)
    store.close()
    again = make_store(tmp_path, max_bytes=8 * (SIZE + 100))
    assert again.has(key(0))
    for number in range(1, 40):
        again.save(key(number), partial(data, number), depth=0)
        assert again.flush()
    assert again.has(key(39))
    assert not again.has(key(0)), "it would be the newest for a year"
    again.close()
