"""From a body to a job: the prompt, the sampling, the grammar and the wording of an answer.

Cutting a long history into tokens and compiling a schema take a while, so jobs are made off the event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hotloop.chat.prompt import Prompt, chat_prompt
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.request import SamplingParams
from hotloop.server.openai_chat import (
    ChatBody,
    each_tool,
    parse_answer_constraint,
    parse_calling,
    parse_chat_sampling,
    parse_conversation,
)
from hotloop.server.openai_completions import (
    CompletionBody,
    CompletionWording,
    parse_completion_sampling,
    parse_prompts,
)
from hotloop.server.openai_message import ChatWording, PlainText
from hotloop.server.openai_render import Wording
from hotloop.server.openai_structure import Constraint, blaming, parse_constraint
from hotloop.server.openai_tools import Calling
from hotloop.server.service import Service


@dataclass(frozen=True, slots=True)
class Job:
    """What an endpoint makes of its body."""

    endpoint: str
    id_prefix: str
    prompt_param: str
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    wording: Wording
    grammar: Grammar | None


def chat_job(body: ChatBody, service: Service) -> Job:
    engine, tool_format = service.engine, service.tool_format
    calling = parse_calling(body, is_strict=service.strict_tools)
    keep_special = calling.is_possible and tool_format.keep_special
    sampling = parse_chat_sampling(body, engine.tokenizer.vocab_size, keep_special=keep_special)
    grammar = _chat_grammar(body, calling, service)
    prompt = chat_prompt(parse_conversation(body, calling), engine.template, engine.tokenizer, tool_format)
    wording = ChatWording(
        engine.tokenizer,
        has_logprobs=sampling.logprobs is not None,
        parser=partial(tool_format.parser, calling.allowed) if calling.is_possible else PlainText,
        is_named=calling.choice.name is not None,
    )
    return Job("chat", "chatcmpl", "messages", [prompt], sampling, wording, grammar)


def completion_job(body: CompletionBody, service: Service) -> Job:
    tokenizer = service.engine.tokenizer
    sampling = parse_completion_sampling(body, tokenizer.vocab_size)
    grammar = _compile(parse_constraint(body), service)
    prompts = parse_prompts(body, tokenizer)
    echoes = [prompt.text if body.echo else "" for prompt in prompts]
    wording = CompletionWording(tokenizer, echoes, body.num_choices)
    return Job("completions", "cmpl", "prompt", prompts, sampling, wording, grammar)


def _chat_grammar(body: ChatBody, calling: Calling, service: Service) -> Grammar | None:
    """What the answer must look like. If that is impossible, the one tool at fault is named: there may be many."""
    tool_format, tokenizer = service.tool_format, service.engine.tokenizer
    try:
        return _compile(parse_answer_constraint(body, calling, tool_format, tokenizer), service)
    except RequestError:
        if calling.is_possible:
            for constraint in each_tool(calling, tool_format, tokenizer):
                _compile(constraint, service)
        raise


def _compile(constraint: Constraint | None, service: Service) -> Grammar | None:
    """Compile now and on this thread, so that the engine finds it done."""
    if constraint is None:
        return None
    with blaming(constraint.param):
        service.engine.grammars.prepare(constraint.grammar)
    return constraint.grammar
