"""What the endpoints share: the engine, the served model's name, and how a request is read."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest

from hotloop.chat.chat import Chat
from hotloop.core.config import ServerConfig, parse_bytes
from hotloop.core.errors import UnknownModel
from hotloop.core.version import __version__
from hotloop.http.bodies import BodyRoom, read_aside
from hotloop.http.keys import ApiKeys
from hotloop.http.serving import trim_memory
from hotloop.server.border import read_json
from hotloop.server.delivery import EventBridge
from hotloop.server.engine_client import EngineClient
from hotloop.server.explain.inquiry import Explainer
from hotloop.server.holds import RetentionHints
from hotloop.server.job import Jobs
from hotloop.server.metrics import Metrics
from hotloop.server.options import Options, decode, parse_hints
from hotloop.server.spans import RequestRecorder
from hotloop.server.tenants import Caller, name_scope
from hotloop.trace.tracer import Tracer
from hotloop.wire.field import Field, Json, read_text
from hotloop.wire.request import ApiRequest

_DECODED_SHARE = 8  # decoded and made a prompt of, a text takes up to eight times its bytes


class Service:
    def __init__(self, engine: EngineClient, config: ServerConfig, tracer: Tracer, keys: ApiKeys | None = None) -> None:
        self.engine = engine
        self.num_kv_sent = 0
        """Servers that KV is being sent to."""
        self._keys = keys or ApiKeys()
        self.is_draining = False
        self.model = config.served_name or engine.facts.name
        self.metrics = Metrics(lambda: engine.class_limits, tracer)
        self.chat = Chat(
            engine.template,
            engine.tokenizer,
            engine.grammars,
            _first_violation,
            config,
            engine.facts.max_context,
            engine.sharing,
        )
        engine.offer_counts(self.metrics.count)
        self.bridge = EventBridge(engine, self.metrics)
        self.retention_hints = RetentionHints(engine)
        self.explainer = Explainer(
            engine.tokenizer,
            self.metrics,
            block_size=engine.facts.block_size,
            level=config.explanations,
            memory_tokens=config.explain_memory_tokens,
            sharing=engine.sharing,
        )
        self.recorder = RequestRecorder(tracer, self.explainer, self.model, engine.sharing)
        self.strict_tools = config.strict_tools
        self.jobs = Jobs(self.chat, self.explainer, self.retention_hints, strict_tools=config.strict_tools)
        self.fingerprint = f"fp_{hashlib.sha256(f'{__version__} {engine.facts.name}'.encode()).hexdigest()[:10]}"
        self._isolation = config.cache_isolation
        self._max_body_bytes = parse_bytes(config.max_body)
        body_memory = parse_bytes(config.body_memory) // engine.facts.num_fronts
        self.body_room = BodyRoom(body_memory // _DECODED_SHARE, body_memory, trim_memory)

    @property
    def peer_key(self) -> str:
        """The key with which other servers are asked for KV."""
        return self._keys.current.own

    @classmethod
    def of(cls, http: HttpRequest) -> "Service":
        service = http.app.state.service
        assert isinstance(service, cls)
        return service

    @asynccontextmanager
    async def reading(self, http: HttpRequest) -> AsyncIterator[Json]:
        """The body, for as long as it takes to make a job of it. A model that is not named is the one there is."""
        data = await read_json(http, self._max_body_bytes)
        await self.engine.catch_up()
        if self.recorder.tracer.keeps_content:
            http.state.body = data
        async with self.body_room.hold(len(data)):
            body = await read_aside(len(data), partial(decode, data))
            del data
            self.check_model(read_text(Field(body), "model"))
            body["model"] = self.model
            try:
                yield body
            finally:
                body.clear()  # the endpoint's frame lives as long as its answer

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model:
            raise UnknownModel(name, self.model)

    def scope(self, http: HttpRequest, cache_salt: str | None = None) -> str:
        return name_scope(http.state.tenant, cache_salt, self._isolation)

    def caller(self, http: HttpRequest, request: ApiRequest, options: Options) -> Caller:
        hints = parse_hints(request, options, http.headers)
        return Caller(
            http.state.tenant,
            self.scope(http, options.cache_salt),
            hints.session,
            http.state.request_id,
            hints.priority,
            hints.parent,
            hints.is_final,
        )


def _first_violation(value: Any, schema: Any) -> str:
    from hotloop.http.json_schema import first_violation  # noqa: PLC0415 - a tenth of a second, where there is a schema

    return first_violation(value, schema)
