"""From a body to a job: the prompt, the sampling, the grammar and the wording of an answer.

Cutting a long history into tokens and compiling a schema take a while, so jobs are made off the event loop.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from hotloop.chat.prompt import Prompt
from hotloop.chat.stream import CallParser
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.request import SamplingParams
from hotloop.server.calling import Calling
from hotloop.server.delivery import PlainText, Silence
from hotloop.server.holds import Pin, Turn
from hotloop.server.job import Job
from hotloop.server.openai.chat import (
    ChatBody,
    constrain,
    each_tool,
    parse_calling,
    parse_chat_sampling,
    parse_conversation,
)
from hotloop.server.openai.completions import (
    CompletionBody,
    CompletionWording,
    parse_completion_sampling,
    parse_prompts,
)
from hotloop.server.openai.message import ChatWording
from hotloop.server.openai.render import Wording
from hotloop.server.openai.structure import Constraint, blaming, parse_constraint
from hotloop.server.openai.wire import GenerateBody, parse_retention
from hotloop.server.service import Service
from hotloop.server.tenants import Asker

_MAX_BLAMED = 16  # tools looked at one by one when something is wrong with one of them


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionJob(Job):
    """A job of OpenAI's chat or plain completions."""

    id_prefix: str
    wording: Wording


def chat_job(body: ChatBody, service: Service, asker: Asker) -> CompletionJob:
    engine = service.engine
    calling = parse_calling(body, is_strict=service.strict_tools)
    keep_special = shows_special(calling, service)
    sampling = parse_chat_sampling(body, engine.tokenizer.vocab_size, keep_special=keep_special)
    grammar = answer_grammar(parse_constraint(body), calling, service)
    conversation = parse_conversation(body, calling)
    prompt = service.prompts.chat(conversation, scope=asker.scope)
    turn = service.keeper.begin(
        conversation.messages,
        whole_prompt_pins(body, prompt),
        can_call=calling.is_possible,
        num_choices=body.num_choices,
    )
    wording = ChatWording(
        engine.tokenizer,
        has_logprobs=sampling.logprobs is not None,
        can_call=calling.is_possible,
        is_named=calling.choice.name is not None,
    )
    return CompletionJob(
        endpoint="chat",
        id_prefix="chatcmpl",
        prompt_param="messages",
        prompts=[prompt],
        num_choices=body.num_choices,
        sampling=sampling,
        wording=wording,
        parser=answer_parser(calling, service, turn),
        grammar=grammar,
        turn=turn,
        inquiry=service.explainer.inquire([prompt], asker, body.compared_with),
        asker=asker,
    )


def reading_job(body: ChatBody, service: Service, asker: Asker) -> CompletionJob:
    """A prompt that will go on, read and not answered. The engine cannot say nothing: it says one token, to nobody."""
    if body.stream or body.num_choices > 1:
        reason = "generate: false answers nothing, so there is nothing to stream and nothing to choose from"
        raise RequestError(reason, param="stream" if body.stream else "n")
    calling = parse_calling(body, is_strict=service.strict_tools)
    prompt = service.prompts.chat(parse_conversation(body, calling), scope=asker.scope)
    return CompletionJob(
        endpoint="chat",
        id_prefix="chatcmpl",
        prompt_param="messages",
        prompts=[prompt],
        sampling=SamplingParams(max_tokens=1, ignore_eos=True),
        wording=ChatWording(service.engine.tokenizer, has_logprobs=False),
        parser=Silence,
        grammar=None,
        turn=service.keeper.begin(pins=whole_prompt_pins(body, prompt)),
        inquiry=service.explainer.inquire([prompt], asker, body.compared_with),
        asker=asker,
        is_silent=True,
    )


def completion_job(body: CompletionBody, service: Service, asker: Asker) -> CompletionJob:
    tokenizer = service.engine.tokenizer
    sampling = parse_completion_sampling(body, tokenizer.vocab_size)
    grammar = _compile(parse_constraint(body), service)
    prompts = parse_prompts(body, service.prompts, asker.scope)
    echoes = [prompt.text if body.echo else "" for prompt in prompts]
    return CompletionJob(
        endpoint="completions",
        id_prefix="cmpl",
        prompt_param="prompt",
        prompts=prompts,
        num_choices=body.num_choices,
        sampling=sampling,
        wording=CompletionWording(tokenizer, echoes, body.num_choices),
        grammar=grammar,
        turn=service.keeper.begin(),
        inquiry=service.explainer.inquire(prompts, asker, body.compared_with),
        asker=asker,
    )


def shows_special(calling: Calling, service: Service) -> bool:
    """Whether the text must show special tokens, since calls are marked with them."""
    return calling.is_possible and service.tool_format.keep_special


def whole_prompt_pins(body: GenerateBody, prompt: Prompt) -> tuple[Pin, ...]:
    """OpenAI's clients say how long a prompt is to be kept, not which part of it."""
    ttl_s = parse_retention(body)
    return (Pin(len(prompt.token_ids), ttl_s),) if ttl_s else ()


def answer_parser(calling: Calling, service: Service, turn: Turn) -> Callable[[], CallParser]:
    """What makes the parser of an answer: without tools to call, all of it is text."""
    return partial(_watched_parser, calling, service, turn) if calling.is_possible else PlainText


def _watched_parser(calling: Calling, service: Service, turn: Turn) -> CallParser:
    return turn.watch(service.prompts.parser(calling.allowed))


def answer_grammar(asked: Constraint | None, calling: Calling, service: Service) -> Grammar | None:
    """What the answer must look like; `asked` is what the body wants of one that is not a call.

    If that is impossible, the one tool at fault is named: there may be many.
    """
    tool_format, tokenizer = service.tool_format, service.engine.tokenizer
    try:
        ordered = replace(calling, allowed=service.prompts.order(calling.allowed))
        return _compile(constrain(asked, ordered, tool_format, tokenizer), service)
    except RequestError:
        if calling.is_possible:
            for constraint in islice(each_tool(calling, tool_format, tokenizer), _MAX_BLAMED):
                _compile(constraint, service)
        raise


def _compile(constraint: Constraint | None, service: Service) -> Grammar | None:
    """Compile now and on this thread, so that the engine finds it done."""
    if constraint is None:
        return None
    with blaming(constraint.param):
        service.engine.grammars.prepare(constraint.grammar)
    return constraint.grammar
