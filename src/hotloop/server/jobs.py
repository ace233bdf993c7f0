"""From a request of any of the three chat APIs to a job: the prompt, the sampling, the grammar and what to keep.

Tokenizing a long history and compiling a schema take a while, so jobs are made off the event loop.
"""

from functools import partial

from hotloop.chat.prompt import Conversation, Prompt
from hotloop.chat.stream import CallParser
from hotloop.core.errors import RequestError
from hotloop.core.request import SamplingParams
from hotloop.server.breakpoints import find_pins
from hotloop.server.calling import Calling, parse_calling
from hotloop.server.delivery import PlainText, Silence
from hotloop.server.holds import Pin
from hotloop.server.job import Job
from hotloop.server.options import Options, parse_sampling
from hotloop.server.service import Service
from hotloop.server.structure import answer_grammar, parse_constraint
from hotloop.server.tenants import Caller
from hotloop.server.turns import Transcript, parse_transcript
from hotloop.wire.field import Json
from hotloop.wire.request import Request


def make_job(
    request: Request,
    options: Options,
    service: Service,
    caller: Caller,
    *,
    logprobs: int | None = None,
    is_silent: bool = False,
) -> Job:
    """`is_silent`: the prompt is prefilled and not answered. The engine cannot say nothing: it says one token, to
    nobody."""
    calling = parse_calling(request, is_strict=service.strict_tools)
    transcript = parse_transcript(request)
    grammar = None if is_silent else answer_grammar(parse_constraint(request, options), calling, service)
    prompt = make_prompt(request, options, transcript, calling, service, caller.scope)
    max_tokens, sampling = _max_tokens(request, prompt, service), SamplingParams(max_tokens=1, ignore_eos=True)
    if not is_silent:
        sampling = parse_sampling(
            request,
            options,
            service.engine.tokenizer.vocab_size,
            max_tokens=max_tokens,
            logprobs=logprobs,
            keep_special=calling.is_possible and service.tool_format.keep_special,
        )
    pins = _find_pins(options, transcript, prompt, service)
    messages = () if is_silent else transcript.messages  # what is only prefilled has neither come back nor ended
    return Job(
        endpoint=request.api,
        prompt_param=request.turns_param,
        prompts=[prompt],
        sampling=sampling,
        grammar=grammar,
        turn=service.keeper.begin(messages, pins, num_choices=options.num_choices),
        inquiry=service.explainer.inquire([prompt], caller, options.compared_with),
        caller=caller,
        calling=calling,
        pins=pins,
        num_choices=options.num_choices,
        parser=Silence if is_silent else partial(_make_parser, calling, service),
        is_stream=request.is_stream,
        has_usage=request.has_usage,
        is_silent=is_silent,
    )


def make_prompt(
    request: Request, options: Options, transcript: Transcript, calling: Calling, service: Service, scope: str
) -> Prompt:
    """Tools that may not be called stay in the prompt, so that what is cached of it is still good."""
    is_continued = request.api == "messages" and transcript.messages[-1].role == "assistant"
    conversation = Conversation(
        messages=transcript.messages,
        tools=calling.tools,
        is_answer_next=not is_continued and getattr(options, "generate", None) is not False,
        extra=template_variables(request, options),
    )
    return service.prompts.chat(conversation, scope=scope)


def template_variables(request: Request, options: Options) -> Json:
    """Models that can think are told when they should not. What else is said about thinking is up to the model."""
    is_off = (request.thinking or {}).get("type") == "disabled"
    return {**({"enable_thinking": False} if is_off else {}), **(options.chat_template_kwargs or {})}


def _max_tokens(request: Request, prompt: Prompt, service: Service) -> int | None:
    """Anthropic's clients ask for tens of thousands of tokens, whatever the model: they get what the context leaves.

    They know the words of this refusal: they make the conversation shorter and try again.
    """
    if request.api != "messages" or request.max_tokens is None:
        return request.max_tokens
    num_prompt, max_prompt = len(prompt.token_ids), service.engine.max_context - 1
    if num_prompt > max_prompt:
        raise RequestError(f"prompt is too long: {num_prompt} tokens > {max_prompt} maximum", param="messages")
    return min(request.max_tokens, service.engine.max_context - num_prompt)


def _find_pins(options: Options, transcript: Transcript, prompt: Prompt, service: Service) -> tuple[Pin, ...]:
    """OpenAI's clients say how long a prompt is to be kept, Anthropic's which part of it."""
    whole = (Pin(len(prompt.token_ids), options.retention_s),) if options.retention_s else ()
    return find_pins(transcript.hints, transcript.messages, prompt, service.engine.tokenizer) + whole


def _make_parser(calling: Calling, service: Service) -> CallParser:
    """Without tools to call, all of an answer is text."""
    return service.prompts.parser(calling.allowed) if calling.is_possible else PlainText()
