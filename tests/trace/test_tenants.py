"""Whose a run is: traces of two tenants never meet, and each finds its own."""

from pathlib import Path

from msgspec.structs import replace
from tests.trace.spans import TRACE, a_request

from hotloop.trace.runs import TraceStore
from hotloop.trace.span import RecentTraces, own_trace_id, parse_traceparent, render_traceparent
from hotloop.trace.store import add_spans

PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_runs_of_one_tenant(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    for name, trace_id in (("anna", "a" * 32), ("bob", "b" * 32), ("", "c" * 32)):
        add_spans(path, [replace(each, tenant=name, trace_id=trace_id) for each in a_request(0, 30)])
    with TraceStore(path) as reader:
        assert [run.trace_id for run in reader.runs(tenant="anna")] == ["a" * 32]
        assert len(reader.runs()) == 3
        assert reader.run("b" * 32, "anna") is None
        assert reader.run("b" * 32, "bob") == reader.run("b" * 32)
        for before in ("b" * 32, "d" * 32):
            assert reader.runs(tenant="anna", before=before) == [], "whether there is such a run is not told"


def test_a_trace_that_two_tenants_name_is_two() -> None:
    recent = RecentTraces()
    joined = {tenant: recent.join(PARENT, "", tenant)[0] for tenant in ("", "anna", "bob")}
    assert joined[""].trace_id == TRACE, "with one tenant it is the client's"
    assert len({each.trace_id for each in joined.values()}) == 3
    for tenant, context in joined.items():
        assert parse_traceparent(render_traceparent(context)) == context
        behind, parent_id = RecentTraces().join(render_traceparent(context), "", tenant)
        assert (behind.trace_id, parent_id) == (context.trace_id, context.span_id), "a replica goes on with it"
    assert own_trace_id(joined["anna"].trace_id, "bob") not in {each.trace_id for each in joined.values()}


def test_a_session_goes_on_in_its_trace() -> None:
    recent = RecentTraces()
    first, second = (recent.join(None, "anna/s", "anna")[0] for _ in range(2))
    assert first.trace_id == second.trace_id == own_trace_id(first.trace_id, "anna")
