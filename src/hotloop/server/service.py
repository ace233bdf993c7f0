"""What the endpoints share: the engine, the model's name to the world, and the way to both."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from hotloop.chat.formats import ToolFormat, choose_format
from hotloop.chat.prompt import PromptRules, Prompts
from hotloop.core.config import CacheIsolation, ServerConfig, parse_bytes
from hotloop.core.errors import ConfigError, UnknownModel
from hotloop.core.version import __version__
from hotloop.engine.engine import Engine
from hotloop.server.border import read_json
from hotloop.server.delivery import Mailroom
from hotloop.server.explain.inquiry import Explainer
from hotloop.server.holds import Keeper
from hotloop.server.metrics import Metrics
from hotloop.server.openai.render import Envelope
from hotloop.server.openai.wire import Asking, parse_session_id
from hotloop.server.responses.store import ResponseStore
from hotloop.server.tenants import Asker, name_owner, name_scope
from hotloop.server.traced import RequestRecorder
from hotloop.trace.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Service:
    """One engine, served."""

    engine: Engine
    model: str
    metrics: Metrics
    mailroom: Mailroom
    tool_format: ToolFormat
    prompts: Prompts
    keeper: Keeper
    explainer: Explainer
    recorder: RequestRecorder
    strict_tools: bool
    cache_isolation: CacheIsolation
    fingerprint: str
    max_body_bytes: int
    responses: ResponseStore = field(default_factory=ResponseStore)
    started_at: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, request: Request) -> "Service":
        service = request.app.state.service
        assert isinstance(service, cls)
        return service

    @classmethod
    def build(cls, engine: Engine, config: ServerConfig, tracer: Tracer) -> "Service":
        if engine.kv_events and config.cache_isolation == "key":
            raise ConfigError("kv_events publishes nothing under cache_isolation key: leave one of the two out")
        model = config.served_name or engine.name
        metrics = Metrics(engine, model, tracer)
        tool_format = choose_format(engine.template, engine.tokenizer, config.tool_format)
        prompts = Prompts(engine.template, engine.tokenizer, tool_format, _rules(config))
        explainer = Explainer(
            engine.tokenizer,
            metrics,
            block_size=engine.block_size,
            level=config.explanations,
            memory_tokens=config.explain_memory_tokens,
        )
        digest = hashlib.sha256(f"{__version__} {engine.name}".encode()).hexdigest()
        return cls(
            engine=engine,
            model=model,
            metrics=metrics,
            mailroom=Mailroom(engine, metrics, prompts),
            tool_format=tool_format,
            prompts=prompts,
            keeper=Keeper(engine),
            explainer=explainer,
            recorder=RequestRecorder(tracer, explainer, model),
            strict_tools=config.strict_tools,
            cache_isolation=config.cache_isolation,
            fingerprint=f"fp_{digest[:10]}",
            max_body_bytes=parse_bytes(config.max_body),
        )

    async def read(self, request: Request) -> bytes:
        body = await read_json(request, self.max_body_bytes)
        if self.recorder.tracer.keeps_content:
            request.state.body = body
        return body

    def check_model(self, name: str | None) -> None:
        """No name means the one model there is."""
        if name is not None and name != self.model:
            raise UnknownModel(name, self.model)

    def scope(self, headers: Mapping[str, str], cache_salt: str | None = None) -> str:
        """With whom a request shares what was read and remembered."""
        return name_scope(headers, cache_salt, self.cache_isolation)

    def asker(self, http: Request, body: Asking) -> Asker:
        return Asker(
            name_owner(http.headers),
            self.scope(http.headers, body.cache_salt),
            parse_session_id(body, http.headers),
            http.state.request_id,
        )

    def envelope(self, answer_id: str) -> Envelope:
        return Envelope(answer_id, int(time.time()), self.model, self.fingerprint)


def _rules(config: ServerConfig) -> PromptRules:
    return PromptRules(
        exact_turns=config.exact_turns,
        memory_tokens=config.prompt_memory_tokens,
        canonical_tools=config.canonical_tools,
        move_nonces=config.move_nonces,
        word_late_system=config.word_late_system,
    )
