"""What Prometheus sees of recording: what was lost of it. The same names at the server and the router."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from hotloop.trace.tracer import Tracer


class TraceCollector(Collector):
    """Asks the tracer when somebody asks."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def collect(self) -> Iterator[CounterMetricFamily]:
        losses = self._tracer.losses
        yield CounterMetricFamily(
            "hotloop_trace_dropped_spans", "Spans that came faster than they could be written.", losses.num_dropped
        )
        yield CounterMetricFamily(
            "hotloop_trace_failed_writes", "Times the trace could not be written.", losses.num_failed
        )
