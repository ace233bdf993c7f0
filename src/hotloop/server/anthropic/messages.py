"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's way of asking, over the same engine.

A body becomes a `MessageJob` off the event loop, since cutting a long history into tokens takes a while; from there on
it is one request.
"""

import asyncio
import secrets
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hotloop.chat.prompt import Conversation, Prompt
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar
from hotloop.server.anthropic.render import EventWriter, Frame, render_message
from hotloop.server.anthropic.wire import (
    MessagesBody,
    PromptBody,
    parse_calling,
    parse_output_constraint,
    parse_sampling,
    parse_template_variables,
    parse_turns,
)
from hotloop.server.breakpoints import find_pins
from hotloop.server.calling import Calling
from hotloop.server.decoding import decode
from hotloop.server.delivery import Silence
from hotloop.server.generate import EventStream, submit
from hotloop.server.job import Job
from hotloop.server.jobs import answer_grammar, answer_parser, shows_special
from hotloop.server.message_errors import ThreadUnsupported
from hotloop.server.openai.wire import parse_priority
from hotloop.server.service import Service
from hotloop.server.tenants import Asker
from hotloop.server.turns import Turns

_messages_body = msgspec.json.Decoder(MessagesBody)
_prompt_body = msgspec.json.Decoder(PromptBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageJob(Job):
    """A job of Anthropic's messages: one prompt, one answer."""

    frame: Frame


async def messages(http: HttpRequest) -> Response:
    service = Service.of(http)
    body = decode(_messages_body, await service.read(http))
    service.check_model(body.model)
    job = await asyncio.to_thread(message_job, body, service, service.asker(http, body))
    call = submit(http, job, job.frame.id, parse_priority(body, http.headers))
    if body.stream:
        return EventStream(call, EventWriter(job.frame), http.state.request_id)
    async with call.attended(http.receive):
        [(_, piece)] = await call.take_all()
    return Response(render_message(job.frame, piece), media_type="application/json")


async def count_tokens(http: HttpRequest) -> Response:
    service = Service.of(http)
    body = decode(_prompt_body, await service.read(http))
    service.check_model(body.model)
    scope = service.scope(http.headers, body.cache_salt)
    prompt = await asyncio.to_thread(_count_prompt, body, service, scope)
    return JSONResponse({"input_tokens": len(prompt.token_ids)})


def message_job(body: MessagesBody, service: Service, asker: Asker) -> MessageJob:
    if body.thread is not None:
        raise ThreadUnsupported
    calling = parse_calling(body, is_strict=service.strict_tools)
    turns = parse_turns(body)
    if turns.messages[-1].role == "assistant":
        reason = "messages: the last turn is the assistant's, and cannot be continued here"
        raise RequestError(reason, param="messages")
    grammar = _make_grammar(body, calling, service)
    prompt = _make_prompt(body, turns, calling, service, asker.scope)
    pins = find_pins(turns.hints, turns.messages, prompt, service.engine.tokenizer)
    if body.is_warming:  # what is only read has neither come back nor ended
        turn = service.keeper.begin(pins=pins)
    else:
        turn = service.keeper.begin(turns.messages, pins, can_call=calling.is_possible)
    num_left = _num_left(prompt, service)
    max_tokens = min(max(body.max_tokens, 1), num_left)
    inquiry = service.explainer.inquire([prompt], asker, body.compared_with)
    frame = Frame(
        id=f"msg_{secrets.token_hex(12)}",
        model=service.model,
        inquiry=inquiry,
        ttl=turns.hints[-1].ttl if turns.hints else None,
        num_kept=max((pin.num_tokens for pin in pins), default=0),
        limit="window" if body.max_tokens > num_left else "length",
        is_silent=body.is_warming,
    )
    return MessageJob(
        endpoint="messages",
        prompt_param="messages",
        prompts=[prompt],
        sampling=parse_sampling(body, max_tokens=max_tokens, keep_special=shows_special(calling, service)),
        grammar=grammar,
        frame=frame,
        parser=Silence if body.is_warming else answer_parser(calling, service, turn),
        turn=turn,
        inquiry=inquiry,
        asker=asker,
        is_silent=body.is_warming,
    )


def _make_grammar(body: MessagesBody, calling: Calling, service: Service) -> Grammar | None:
    return None if body.is_warming else answer_grammar(parse_output_constraint(body), calling, service)


def _make_prompt(body: PromptBody, turns: Turns, calling: Calling, service: Service, scope: str) -> Prompt:
    conversation = Conversation(
        messages=tuple(turns.messages),
        tools=calling.tools,
        is_answer_next=turns.messages[-1].role != "assistant",
        extra=parse_template_variables(body),
    )
    return service.prompts.chat(conversation, scope=scope)


def _num_left(prompt: Prompt, service: Service) -> int:
    """How long the answer can be: clients ask for tens of thousands of tokens, whatever the model.

    They know the words of this refusal: they make the conversation shorter and try again.
    """
    num_prompt, max_prompt = len(prompt.token_ids), service.engine.max_context - 1
    if num_prompt > max_prompt:
        raise RequestError(f"prompt is too long: {num_prompt} tokens > {max_prompt} maximum", param="messages")
    return service.engine.max_context - num_prompt


def _count_prompt(body: PromptBody, service: Service, scope: str) -> Prompt:
    calling = parse_calling(body, is_strict=service.strict_tools)
    return _make_prompt(body, parse_turns(body), calling, service, scope)
