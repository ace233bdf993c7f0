"""Which runs a filter finds."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.ui.made_up import FINDINGS, START_NS, Engine, Run, fill_store, make_runs

from hotloop.trace import names
from hotloop.trace.runs import TraceStore
from hotloop.ui.source import RunFilter, SummaryFilter
from hotloop.ui.store_source import LOST_S, StoreSource

NUM_RUNS = 36


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSource]:
    path = fill_store(tmp_path_factory.mktemp("store") / "trace.db", *make_runs(NUM_RUNS))
    with TraceStore(path) as store:
        yield StoreSource(store, title="here")


def test_the_newest_come_first(source: StoreSource):
    page = source.runs(RunFilter())
    assert len(page["runs"]) == NUM_RUNS
    assert page["before"] is None
    assert [run["start_ms"] for run in page["runs"]] == sorted((run["start_ms"] for run in page["runs"]), reverse=True)


def test_text_is_looked_for_in_what_names_a_run(source: StoreSource):
    [some] = source.runs(RunFilter(limit=1, text="TRIAGE"))["runs"]
    assert some["agent"] == "triage"
    assert {run["session"] for run in source.runs(RunFilter(text="session-03"))["runs"]} == {"session-03"}
    assert some["id"] in {run["id"] for run in source.runs(RunFilter(text=some["id"][:10]))["runs"]}
    assert len(source.runs(RunFilter(text="tiny"))["runs"]) == NUM_RUNS
    assert source.runs(RunFilter(text="%"))["runs"] == []


def test_by_how_it_ended_and_how_long_it_took(source: StoreSource):
    failed = source.runs(RunFilter(end="failed"))["runs"]
    assert failed
    assert failed == source.runs(RunFilter(has_errors=True))["runs"]
    plain = source.runs(RunFilter(end="none"))["runs"]
    assert {run["agent"] for run in plain} == {""}
    slow = source.runs(RunFilter(min_wall_s=1.0))["runs"]
    assert 0 < len(slow) < NUM_RUNS
    assert all(run["wall_ms"] >= 1000 for run in slow)


def test_pages_of_what_a_filter_wants_make_up_the_list(source: StoreSource):
    wanted = source.runs(RunFilter(end="done"))["runs"]
    found, before = [], None
    while len(found) < len(wanted):
        page = source.runs(RunFilter(end="done", limit=4, before=before))
        found += page["runs"]
        before = page["before"]
    assert found == wanted
    assert before is None


async def test_what_is_not_handed_in_is_not_there(source: StoreSource):
    run_id = source.runs(RunFilter(limit=1))["runs"][0]["id"]
    assert await source.live() is None
    assert source.lint(run_id) is None
    assert source.run("nothing") is None


async def test_what_is_handed_in_is_asked(tmp_path: Path):
    spans = next(make_runs(1))
    with TraceStore(fill_store(tmp_path / "trace.db", spans)) as store:
        source = StoreSource(store, title="here", live=Engine().live, lint=lambda found: FINDINGS[: len(found) > 0])
        assert source.about["has_live"]
        live = await source.live()
        assert live
        assert live.num_running == 5
        assert source.lint(spans[0].trace_id) == FINDINGS[:1]
        assert source.lint("nothing") is None


class TestGoingOn:
    @pytest.fixture
    def clock(self) -> list[int]:
        return [START_NS + 10**9]

    @pytest.fixture
    def source(self, tmp_path: Path, clock: list[int]) -> Iterator[StoreSource]:
        """A run that has begun, one that has ended, and a plain client's."""
        begun, turn, *_ = Run(1, "triage").growing(3)
        path = fill_store(tmp_path / "trace.db", begun, turn, Run(2, "code").agent_run(1), Run(3).plain_request())
        with TraceStore(path) as store:
            yield StoreSource(store, title="here", clock=lambda: clock[0])

    def ends(self, source: StoreSource) -> dict[str, str]:
        return {run["agent"]: run["end"] for run in source.runs(RunFilter())["runs"]}

    def test_a_run_goes_on_until_nothing_was_heard_of_it_for_long(self, source: StoreSource, clock: list[int]):
        assert self.ends(source) == {"triage": "running", "code": "done", "": ""}
        clock[0] += int(2 * LOST_S * 1e9)
        assert self.ends(source) == {"triage": "lost", "code": "done", "": ""}

    def test_it_lasts_until_now(self, source: StoreSource, clock: list[int]):
        running = {run["agent"]: run["running_ms"] for run in source.runs(RunFilter())["runs"]}
        assert running == {"triage": 1000.0, "code": None, "": None}
        clock[0] += int(2 * LOST_S * 1e9)
        assert {run["running_ms"] for run in source.runs(RunFilter())["runs"]} == {None}

    def test_a_filter_finds_it(self, source: StoreSource, clock: list[int]):
        assert [run["agent"] for run in source.runs(RunFilter(end="running"))["runs"]] == ["triage"]
        assert source.runs(RunFilter(end="lost"))["runs"] == []
        clock[0] += int(2 * LOST_S * 1e9)
        assert [run["agent"] for run in source.runs(RunFilter(end="lost"))["runs"]] == ["triage"]

    def test_more_may_come_of_it_and_of_a_plain_clients(self, source: StoreSource, clock: list[int]):
        def told() -> dict[str, tuple[bool, str]]:
            ids = {run["agent"]: run["id"] for run in source.runs(RunFilter())["runs"]}
            runs = {agent: source.run(run_id) for agent, run_id in ids.items()}
            return {agent: (run["is_open"], source.version(ids[agent]) or "") for agent, run in runs.items() if run}

        before = told()
        clock[0] += int(2 * LOST_S * 1e9)
        after = told()
        assert {agent: is_open for agent, (is_open, _) in before.items()} == {"triage": True, "code": False, "": True}
        assert {is_open for is_open, _ in after.values()} == {False}
        assert {agent for agent in before if before[agent][1] != after[agent][1]} == {"triage", ""}

    def test_what_is_not_there_has_no_version(self, source: StoreSource):
        assert source.version("nothing") is None


def test_since_leaves_out_what_began_before(source: StoreSource):
    first, *_, last = sorted(run["start_ms"] for run in source.runs(RunFilter())["runs"])
    at_ns = round(last * 1e6) + 1_000_000_000
    now = StoreSource(source._store, title="here", clock=lambda: at_ns)
    assert len(now.runs(RunFilter(since_s=(last - first) / 1e3 + 2))["runs"]) == NUM_RUNS
    assert 0 < len(now.runs(RunFilter(since_s=(last - first) / 2e3))["runs"]) < NUM_RUNS
    assert now.summary(SummaryFilter(since_s=1e-3))["num_runs"] == 0


def test_days_leave_out_what_began_before_and_after(source: StoreSource):
    runs = source.runs(RunFilter())["runs"]
    first, *_, last = sorted(run["start_ms"] / 1e3 for run in runs)
    middle = (first + last) / 2
    times = {"from_s": first, "to_s": middle}
    early = source.runs(RunFilter(**times))["runs"]
    assert [run["id"] for run in early] == [run["id"] for run in runs if run["start_ms"] < middle * 1e3]
    now = StoreSource(source._store, title="here", clock=lambda: round(last * 1e9) + 10**15)
    found = now.summary(SummaryFilter(**times))
    assert found["num_runs"] == len(early)
    ends = [found["buckets"][0]["start_ms"], found["buckets"][-1]["start_ms"] + found["buckets"][-1]["length_ms"]]
    assert ends == pytest.approx([first * 1e3, middle * 1e3])
    assert now.summary(SummaryFilter(from_s=middle, to_s=first))["num_runs"] == 0


def test_waits_of_requests_are_told_by_class_and_over_time(tmp_path: Path):
    runs = [Run(i, "flight desk").agent_run(4) for i in range(3)]
    with TraceStore(fill_store(tmp_path / "trace.db", *runs)) as store:
        source = StoreSource(store, title="here", clock=lambda: START_NS + 10**11)
        told = store.answered(100, since_ns=0)
        buckets = source.summary(SummaryFilter(since_s=100))["buckets"]
        nobody = source.summary(SummaryFilter(since_s=100), tenant="another")["buckets"]
    spans = [span for run in runs for span in run]
    asked = {span.span_id: span for span in spans if span.name == names.REQUEST}
    first = sorted((span.end_ns - asked[span.parent_id].start_ns) / 1e6 for span in spans if span.name == names.PREFILL)
    queued = sorted((span.end_ns - span.start_ns) / 1e6 for span in spans if span.name == names.QUEUE)
    assert sorted(each.first_token_ms for each in told) == first
    assert sorted(each.queue_ms for each in told) == queued
    assert sum(each["num_requests"] for each in buckets) == len(asked) == 12
    assert max(each["first_token_p95_ms"] or 0 for each in buckets) == first[-1]
    worst = {name: wait for each in buckets for name, wait in each["queue_p95_ms"].items() if wait == queued[-1]}
    assert set(worst) <= {"interactive", "workflow"}
    assert worst
    assert {each["num_requests"] for each in nobody} == {0}


def test_where_no_server_told_of_them_requests_waited_at_the_router(tmp_path: Path):
    class_of = {names.PRIORITY: "workflow", names.QUEUE_NS: 3_000_000}
    spans = [
        msgspec.structs.replace(span, attributes={**span.attributes, **class_of})
        for span in Run(1, "flight desk").agent_run(3)
        if span.name == names.ROUTE
    ]
    with TraceStore(fill_store(tmp_path / "trace.db", spans)) as store:
        told = store.answered(100, since_ns=0)
    first = sorted((span.attributes[names.FIRST_BYTE_NS] - span.start_ns) / 1e6 for span in spans)
    assert sorted(each.first_token_ms for each in told) == first
    assert {(each.queue_ms, each.priority) for each in told} == {(3.0, "workflow")}


def test_runs_are_found_and_summed_up_by_their_tags(tmp_path: Path):
    path = tmp_path / "trace.db"
    for i, tags in enumerate([("nightly", "prompt-v2"), ("nightly",), ()]):
        fill_store(path, Run(i, "flight desk").agent_run(2), tags=tags)
    with TraceStore(path) as store:
        source = StoreSource(store, title="here", clock=lambda: START_NS + 10**12)
        found = source.runs(RunFilter(text="prompt-v2"))["runs"]
        run = source.run(found[0]["id"])
        summary = source.summary(SummaryFilter(by="tag"))
        roots = [span for span in store.spans(found[0]["id"]) if "tags" in span.attributes]
    assert [each["tags"] for each in found] == [run["tags"]] == ["nightly prompt-v2"]
    assert {row["name"]: row["num_runs"] for row in summary["groups"]} == {"nightly": 2, "prompt-v2": 1, "": 1}
    assert {span.parent_id for span in roots} == {None}


def test_by_replica_requests_are_summed_up(tmp_path: Path):
    runs = [Run(i, "flight desk").agent_run(4) for i in range(3)]
    with TraceStore(fill_store(tmp_path / "trace.db", *runs)) as store:
        source = StoreSource(store, title="here", clock=lambda: START_NS + 10**12)
        found = source.summary(SummaryFilter(by="replica"))
        nobody = source.summary(SummaryFilter(by="replica"), tenant="another")
    assert {row["name"]: row["num_runs"] for row in found["groups"]} == {"tiny-1": 6, "tiny-2": 6}
    assert found["num_runs"] == 12
    assert all(0 < row["wall_p50_ms"] <= row["wall_p95_ms"] for row in found["groups"])
    assert sum(row["num_prompt"] for row in found["groups"]) > 0
    assert nobody["num_runs"] == 0


def test_a_run_that_failed_says_why(source: StoreSource):
    failed = source.runs(RunFilter(end="failed"))["runs"]
    assert {run["error"] for run in failed} == {"the model could not be reached"}
    [trouble] = source.run(failed[0]["id"])["troubles"]
    assert (trouble["name"], trouble["error"]) == ("run", "the model could not be reached")
    done = source.runs(RunFilter(end="done"))["runs"]
    assert {run["error"] for run in done} == {""}
    assert source.run(done[0]["id"])["troubles"] == []


def test_a_tool_that_failed_is_told_though_the_run_went_on(tmp_path: Path):
    def told(**facts: object) -> str:
        spans = Run(0, "flight desk").agent_run(2)
        [tool, *_] = [span for span in spans if span.name == names.TOOL]
        failed = msgspec.structs.replace(tool, attributes=tool.attributes | {names.IS_ERROR: True} | facts)
        name = f"trace-{len(facts)}.db"
        with TraceStore(fill_store(tmp_path / name, [failed if span is tool else span for span in spans])) as store:
            [trouble] = StoreSource(store, title="here").run(tool.trace_id)["troubles"]
        assert trouble["name"] == "tool"
        return trouble["error"]

    raised = {names.TRACEBACK: '  File "weather.py", line 5, in weather\nRuntimeError'}
    assert told() == "failed; the model was told why"
    assert told(**raised) == "RuntimeError"
    assert told(**raised, **{names.CONTENT_RESULT: "Error: it is down"}) == "Error: it is down"


@pytest.mark.parametrize("by", ["agent", "model", "session", "key"])
def test_a_summary_counts_every_run_once(source: StoreSource, by: str):
    runs = source.runs(RunFilter())["runs"]
    at_ns = round(max(run["start_ms"] for run in runs) * 1e6) + 1_000_000_000
    now = StoreSource(source._store, title="here", clock=lambda: at_ns)
    found = now.summary(SummaryFilter(by=by, since_s=365 * 86_400))
    for parts in (found["groups"], found["buckets"]):
        for name in ("num_prompt", "num_cached", "num_output"):
            assert sum(part[name] for part in parts) == sum(run[name] for run in runs)
        assert sum(part["num_runs"] for part in parts) == NUM_RUNS
    assert found["num_runs"] == NUM_RUNS
    for group in found["groups"]:
        assert group["wall_p50_ms"] <= group["wall_p95_ms"]
    if by == "agent":
        assert {group["name"] for group in found["groups"]} == {run["agent"] for run in runs}
