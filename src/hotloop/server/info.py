"""The endpoints that only tell: what is served, whether it is well, what its numbers are, how it cuts text."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hotloop.chat.prompt import Conversation, Prompt
from hotloop.core.errors import EngineClosed, RequestError
from hotloop.core.version import __version__
from hotloop.server.calling import make_tools
from hotloop.server.decoding import convert
from hotloop.server.explain.render import render_explanation
from hotloop.server.metrics import CONTENT_TYPE
from hotloop.server.options import TokenId
from hotloop.server.service import Service
from hotloop.server.tenants import Caller, name_owner
from hotloop.server.turns import parse_turns
from hotloop.wire.chat.parse import parse_messages, parse_tools
from hotloop.wire.field import Field, Json
from hotloop.wire.policy import Notes


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A text or a conversation, as vLLM takes them."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[TokenId]


async def health(request: Request) -> Response:
    if Service.of(request).engine.failure:
        raise EngineClosed("the engine has failed; the server's log says more")
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    if not Service.of(request).engine.is_running:
        raise EngineClosed("the engine admits no requests")
    return JSONResponse({"status": "ready"})


async def version(request: Request) -> Response:
    return JSONResponse({"version": __version__})


async def metrics(request: Request) -> Response:
    return Response(Service.of(request).metrics.render(), headers={"content-type": CONTENT_TYPE})


async def list_models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_render_model(Service.of(request))]})


async def show_model(request: Request) -> Response:
    service = Service.of(request)
    service.check_model(request.path_params["model"])
    return JSONResponse(_render_model(service))


async def explain(request: Request) -> Response:
    """Why tokens of a prompt were recomputed; for a prompt with a `cache_salt`, that is in the query."""
    service, explainer = Service.of(request), Service.of(request).explainer
    scope = service.scope(request.headers, request.query_params.get("cache_salt"))
    viewer = Caller(name_owner(request.headers), scope)
    explanation = explainer.find(request.path_params["id"], viewer)
    return JSONResponse(await asyncio.to_thread(render_explanation, explanation, viewer, explainer))


async def tokenize(request: Request) -> Response:
    service = Service.of(request)
    body = convert(await service.read(request), TokenizeBody)
    prompt = await asyncio.to_thread(_parse_prompt, body, service, service.scope(request.headers))
    answer: Json = {
        "count": len(prompt.token_ids),
        "max_model_len": service.engine.max_context,
        "tokens": list(prompt.token_ids),
        "token_strs": None,
    }
    if body.return_token_strs:
        answer["token_strs"] = [service.engine.tokenizer.token_text(token_id) for token_id in prompt.token_ids]
    return JSONResponse(answer)


async def detokenize(request: Request) -> Response:
    service = Service.of(request)
    body = convert(await service.read(request), DetokenizeBody)
    return JSONResponse({"prompt": service.prompts.tokens(body.tokens, param="tokens").text})


def _parse_prompt(body: TokenizeBody, service: Service, scope: str) -> Prompt:
    if body.prompt is not None and body.messages is None:
        return service.prompts.text(body.prompt, has_bos=body.add_special_tokens is not False, scope=scope)
    if body.messages is None or body.prompt is not None:
        raise RequestError("give either prompt or messages", param="prompt")
    given = Field({"messages": body.messages, "tools": body.tools})
    conversation = Conversation(
        messages=parse_turns(parse_messages(given, Notes()), "chat").messages,
        tools=make_tools(parse_tools(given), is_strict=service.strict_tools),
        is_answer_next=body.add_generation_prompt is not False,
        extra=body.chat_template_kwargs or {},
    )
    return service.prompts.chat(conversation, scope=scope)


def _render_model(service: Service) -> Json:
    return {
        "id": service.model,
        "object": "model",
        "created": service.started_at,
        "owned_by": "hotloop",
        "max_model_len": service.engine.max_context,
    }
