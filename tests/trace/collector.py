"""A real OTLP receiver over HTTP, that decodes what comes."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """`spans` has (resource, span) as they came."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self.url = ""
        self._status = status

    @contextmanager
    def running(self) -> Iterator["Collector"]:
        ours = self

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["content-length"]))
                ours.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                self.send_response(ours._status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def take(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = plain(group.resource.attributes)
            self.spans += [(resource, each) for scope in group.scope_spans for each in scope.spans]


def plain(attributes: Any) -> dict[str, Any]:
    def value_of(value: Any) -> Any:
        kind = value.WhichOneof("value")
        inner = getattr(value, kind)
        return [value_of(each) for each in inner.values] if kind == "array_value" else inner

    return {each.key: value_of(each.value) for each in attributes}
