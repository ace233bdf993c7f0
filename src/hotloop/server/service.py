"""What the endpoints share: the engine, the model's name to the world, and the way to both."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request as HttpRequest

from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import PromptRules, Prompts
from hotloop.chat.reasoning import choose_reasoning
from hotloop.core.config import ServerConfig, parse_bytes
from hotloop.core.errors import UnknownModel
from hotloop.core.session import name_session
from hotloop.core.version import __version__
from hotloop.engine.engine import Engine
from hotloop.http.bodies import BodyRoom
from hotloop.server.border import read_json
from hotloop.server.delivery import EventBridge
from hotloop.server.explain.inquiry import Explainer
from hotloop.server.holds import RetentionHints
from hotloop.server.loose import SchemaRelaxer
from hotloop.server.metrics import Metrics
from hotloop.server.options import Options, decode, parse_priority
from hotloop.server.spans import RequestRecorder
from hotloop.server.tenants import Caller, name_scope
from hotloop.trace.tracer import Tracer
from hotloop.wire.field import Field, Json, read_text
from hotloop.wire.request import ApiRequest

_DECODED_AT_ONCE = 64 << 10  # bytes; larger bodies are decoded off the event loop
_DECODED_SHARE = 8  # decoded and made a prompt of, a text takes up to eight times its bytes


class Service:
    def __init__(self, engine: Engine, config: ServerConfig, tracer: Tracer) -> None:
        self.engine = engine
        self.is_draining = False
        self.model = config.served_name or engine.name
        self.metrics = Metrics(engine, self.model, tracer)
        self.tool_format = choose_format(engine.template, engine.tokenizer, config.tool_format)
        rules = PromptRules(
            exact_turns=config.exact_turns,
            memory_tokens=config.prompt_memory_tokens,
            canonical_tools=config.canonical_tools,
            move_volatile_lines=config.move_volatile_lines,
            late_system_as_user=config.late_system_as_user,
            late_tools=config.late_tools,
        )
        reasoning = choose_reasoning(engine.template, engine.tokenizer, config.thinking_format)
        self.prompts = Prompts(
            engine.template, engine.tokenizer, self.tool_format, rules, reasoning, max_context=engine.max_context
        )
        self.template_source = engine.template.source if engine.template else ""
        self.relaxer = SchemaRelaxer(self.tool_format, engine.tokenizer, engine.grammars)
        self.bridge = EventBridge(engine, self.metrics)
        self.keeper = RetentionHints(engine)
        self.explainer = Explainer(
            engine.tokenizer,
            self.metrics,
            block_size=engine.block_size,
            level=config.explanations,
            memory_tokens=config.explain_memory_tokens,
        )
        self.recorder = RequestRecorder(tracer, self.explainer, self.model)
        self.strict_tools = config.strict_tools
        self.max_thinking = config.max_thinking
        self.fingerprint = f"fp_{hashlib.sha256(f'{__version__} {engine.name}'.encode()).hexdigest()[:10]}"
        self.started_at = int(time.time())
        self._isolation = config.cache_isolation
        self._max_body_bytes = parse_bytes(config.max_body)
        body_memory = parse_bytes(config.body_memory)
        self._body_room = BodyRoom(body_memory // _DECODED_SHARE, body_memory)

    @classmethod
    def of(cls, http: HttpRequest) -> "Service":
        service = http.app.state.service
        assert isinstance(service, cls)
        return service

    @asynccontextmanager
    async def reading(self, http: HttpRequest) -> AsyncIterator[Json]:
        """The body, for as long as it takes to make a job of it. A model that is not named is the one there is."""
        data = await read_json(http, self._max_body_bytes)
        if self.recorder.tracer.keeps_content:
            http.state.body = data
        async with self._body_room.hold(len(data)):
            body = decode(data) if len(data) < _DECODED_AT_ONCE else await asyncio.to_thread(decode, data)
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
        return Caller(
            http.state.tenant,
            self.scope(http, options.cache_salt),
            name_session(options.session_id, http.headers, request.cache.key, request.user),
            http.state.request_id,
            parse_priority(request, options, http.headers),
        )
