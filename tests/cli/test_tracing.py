"""From the settings to a tracer."""

import pytest
from cyclopts import App
from tests.trace.spans import TRACE, span

from hotloop.cli.settings import TRACED, TraceFlags
from hotloop.cli.tracing import trace_flags, tracing
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError
from hotloop.core.home import store_path
from hotloop.trace import names
from hotloop.trace.runs import TraceStore
from hotloop.trace.tracer import NullTracer


def test_what_is_recorded_is_written_when_it_is_over(tmp_path):
    config = TraceConfig(trace=str(tmp_path / "a" / "trace.db"))
    with tracing(config) as tracer:
        tracer.record(span(names.TOOL, 0, 1, tool="look"))
    with TraceStore(config.trace) as store:
        assert len(store.spans(TRACE)) == 1


def test_by_default_it_is_at_home(empty_home):
    path = store_path(TraceConfig())
    assert path == empty_home / "trace.db"
    with tracing(TraceConfig()) as tracer:
        assert tracer.is_on
        assert not tracer.keeps_content
    assert path.exists()


def test_off_is_off(empty_home):
    assert store_path(TraceConfig(trace="off")) is None
    with tracing(TraceConfig(trace="off")) as tracer:
        assert isinstance(tracer, NullTracer)
    assert not empty_home.exists()


def test_a_home_that_cannot_be_written_stops_nobody(empty_home, capsys):
    empty_home.write_text("a file, and no folder")
    with tracing(TraceConfig()) as tracer:
        assert not tracer.is_on
    assert capsys.readouterr().err.startswith("hotloop: tracing disabled: cannot open the trace store")


def test_a_file_that_was_asked_for_must_be_one(tmp_path):
    with pytest.raises(ConfigError, match="cannot open"), tracing(TraceConfig(trace=str(tmp_path))):
        pass


def test_what_was_said_is_kept_where_it_is_asked_for(tmp_path):
    config = TraceConfig(trace=str(tmp_path / "t.db"), trace_content=True, trace_redact=("[0-9]+",))
    with tracing(config) as tracer:
        assert tracer.keeps_content
        tracer.record(span(names.TOOL, 0, 1, **{names.CONTENT_RESULT: "is 42"}))
    with TraceStore(config.trace) as store:
        assert store.spans(TRACE)[0].attributes == {names.CONTENT_RESULT: "is [redacted]"}


def test_a_collector_is_told_as_well(tmp_path):
    pytest.importorskip("hotloop.trace.otel", reason="needs the extra `otel`", exc_type=ImportError)
    collector = pytest.importorskip("tests.trace.collector", exc_type=ImportError)
    with collector.Collector().running() as running:
        with tracing(TraceConfig(trace=str(tmp_path / "t.db"), trace_otlp=running.url)) as tracer:
            tracer.record(span(names.TURN, 0, 1))
        assert [told.name for _, told in running.spans] == ["hotloop.turn"]
    with TraceStore(tmp_path / "t.db") as store:
        assert len(store.spans(TRACE)) == 1


def test_another_process_is_given_the_same_settings(tmp_path):
    app = App()

    @app.default
    def take(*, trace: TraceFlags = TRACED) -> TraceConfig:
        return trace

    path = str(tmp_path / "a trace.db")
    for config in (
        TraceConfig(trace=path, trace_content=True, trace_redact=("-x", "a b"), trace_otlp="http://127.0.0.1:4318"),
        TraceConfig(trace=path, trace_max_size="1MiB", trace_max_age_days=2.5),
        TraceConfig(trace="off"),
    ):
        assert app(trace_flags(config), result_action="return_value") == config
    assert f"--trace={store_path(TraceConfig())}" in trace_flags(TraceConfig())


@pytest.mark.parametrize(
    "settings",
    [{"trace_max_size": "much"}, {"trace_max_age_days": 0.0}, {"trace_otlp": "localhost:4318"}],
)
def test_a_setting_that_is_wrong_is_told(settings):
    with pytest.raises(ConfigError):
        TraceConfig(**settings)
