"""What a replica needs of `vllm serve`: it takes a model, a host and a port, is well after a while, and streams."""

import argparse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = ""

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/health" else 404, b"")

    def do_POST(self) -> None:
        self._answer(200, self.model.encode() + b" " + self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--exit", type=int)
    given = parser.parse_args()
    if given.exit:
        raise SystemExit(given.exit)
    Endpoint.model = given.model
    ThreadingHTTPServer((given.host, given.port), Endpoint).serve_forever()


if __name__ == "__main__":
    main()
