"""Endpoints that only report: models, health, metrics, explanations, and how text is tokenized."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hotloop.chat.prompt import Prompt
from hotloop.core.errors import EngineClosed, RequestError
from hotloop.core.structs import compiled
from hotloop.core.version import __version__
from hotloop.http.requests import is_for_anthropic
from hotloop.server.errors import ApiNotServed
from hotloop.server.explain.render import render_explanation
from hotloop.server.metrics import CONTENT_TYPE
from hotloop.server.options import Options, TokenId, convert
from hotloop.server.service import Service
from hotloop.server.tenants import Caller
from hotloop.wire.chat.parse import parse_request
from hotloop.wire.field import Json
from hotloop.wire.models import ServedModel, render_model, render_models


@compiled
class TokenizeBody(msgspec.Struct, kw_only=True):
    """What is said about a text or a conversation beside itself, as vLLM takes it."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@compiled
class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[TokenId]


async def health(request: Request) -> Response:
    if Service.of(request).engine.failure:
        raise EngineClosed("the engine has failed; see the server's log")
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    service = Service.of(request)
    if service.is_draining:
        raise EngineClosed("the server is shutting down")
    if not await service.engine.is_ready():
        raise EngineClosed("the server is shutting down or not ready")
    return JSONResponse({"status": "ready"})


async def version(request: Request) -> Response:
    return JSONResponse({"version": __version__})


async def metrics(request: Request) -> Response:
    service = Service.of(request)
    page = await service.engine.metrics() + service.metrics.render(await service.engine.other_counts())
    return Response(page, headers={"content-type": CONTENT_TYPE})


async def list_models(request: Request) -> Response:
    return JSONResponse(render_models([_model(Service.of(request))], for_anthropic=is_for_anthropic(request.scope)))


async def show_model(request: Request) -> Response:
    service = Service.of(request)
    service.check_model(request.path_params["model"])
    return JSONResponse(render_model(_model(service), for_anthropic=is_for_anthropic(request.scope)))


async def explain(request: Request) -> Response:
    """Why tokens of a prompt were recomputed; for a prompt with a `cache_salt`, that is in the query."""
    service, explainer = Service.of(request), Service.of(request).explainer
    scope = service.scope(request, request.query_params.get("cache_salt"))
    viewer = Caller(request.state.tenant, scope)
    explanation = explainer.find(request.path_params["id"], viewer)
    return JSONResponse(await asyncio.to_thread(render_explanation, explanation, viewer, explainer))


async def tokenize(request: Request) -> Response:
    service = Service.of(request)
    async with service.reading(request) as body:
        options = convert(body, TokenizeBody)
        prompt = await asyncio.to_thread(_make_prompt, body, options, service, service.scope(request))
    spell = service.engine.tokenizer.token_text
    answer = {
        "count": len(prompt.token_ids),
        "max_model_len": service.engine.facts.max_context,
        "tokens": list(prompt.token_ids),
        "token_strs": [*map(spell, prompt.token_ids)] if options.return_token_strs else None,
    }
    return JSONResponse(answer)


async def detokenize(request: Request) -> Response:
    service = Service.of(request)
    async with service.reading(request) as given:
        body = convert(given, DetokenizeBody)
    text = await asyncio.to_thread(lambda: service.chat.prompts.tokens(body.tokens, param="tokens").text)
    return JSONResponse({"prompt": text})


async def embeddings(request: Request) -> Response:
    raise ApiNotServed(
        "hotloop serve generates text and computes no embeddings: serve a model made for them with vLLM, SGLang or "
        "llama.cpp and put hotloop route in front of both, or ask a hosted API"
    )


NOT_SERVED = (Route("/v1/embeddings", embeddings, methods=["POST"]),)
"""What clients may look for here, and is answered 404 in words."""


def _make_prompt(body: Json, options: TokenizeBody, service: Service, scope: str) -> Prompt:
    is_chat = body.get("messages") is not None
    if is_chat == (options.prompt is not None):
        raise RequestError("give either prompt or messages", param="prompt")
    if options.prompt is not None:
        return service.chat.prompts.text(options.prompt, has_bos=options.add_special_tokens is not False, scope=scope)
    request = parse_request(body)
    given = Options(chat_template_kwargs=options.chat_template_kwargs)
    return service.jobs.make_prompt(request, given, scope, is_prefill_only=options.add_generation_prompt is False)


def _model(service: Service) -> ServedModel:
    return ServedModel(service.model, service.engine.facts.started_at, service.engine.facts.max_context)
