"""A server that speaks like vLLM, without a model: its list of models, its health and metrics, its usage."""

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from tests.bench.fake_server import FakeServer

_METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="fake"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="fake"} 0.0
"""


class VllmServer(FakeServer):
    def _routes(self) -> list[Route]:
        return [*super()._routes(), Route("/health", self._health), Route("/metrics", self._metrics)]

    async def _models(self, request: Request) -> Response:
        card = {"id": "fake", "object": "model", "owned_by": "vllm", "max_model_len": 8192}
        return JSONResponse({"object": "list", "data": [card]})

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(_METRICS)
