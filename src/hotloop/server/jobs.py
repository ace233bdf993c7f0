"""From a request of any of the three chat APIs to a job: the prompt, the sampling, the grammar and what to keep.

Tokenizing a long history and compiling a schema take a while, so jobs are made off the event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hotloop.chat.prompt import ChatInput, Prompt
from hotloop.chat.stream import CallParser, PlainText
from hotloop.core.errors import PromptTooLong, RequestError
from hotloop.core.message import Message, Tool
from hotloop.core.request import SamplingParams
from hotloop.server.calling import Calling, parse_calling
from hotloop.server.delivery import DiscardOutput
from hotloop.server.holds import Pin
from hotloop.server.job import Job
from hotloop.server.options import Options, check_logprobs, max_tokens_with, parse_sampling
from hotloop.server.service import Service
from hotloop.server.structure import Bound, answer_grammar, parse_constraint
from hotloop.server.tenants import Caller
from hotloop.server.thinking import ThinkingWish, parse_wish
from hotloop.server.turns import HintedMessages, find_pins, parse_transcript
from hotloop.wire.request import ApiRequest


def make_job(
    request: ApiRequest,
    options: Options,
    service: Service,
    caller: Caller,
    *,
    logprobs: int | None = None,
    is_silent: bool = False,
) -> Job:
    """`is_silent`: the prompt is only prefilled. The engine cannot say nothing, so it says one token to nobody."""
    calling, transcript = parse_calling(request, is_strict=service.strict_tools), parse_transcript(request)
    wish = parse_wish(request, service.template_source, service.max_thinking)
    conversation = make_chat_input(request, options, calling, transcript, wish, is_silent=is_silent)
    prompt = _write(conversation, request, service, caller.scope)
    max_tokens, clamped = _fit(request, prompt, service)
    if max_tokens is None and logprobs is not None:
        max_tokens, clamped = _fit_logprobs(max_tokens_with(logprobs, options.num_choices), prompt, service)
    check_logprobs(logprobs, options.num_choices, max_tokens)
    bound = Bound()
    if not is_silent and service.engine.has_room(len(prompt.token_ids)):  # it is refused otherwise: nothing is compiled
        bound = answer_grammar(parse_constraint(request, options), calling, service)
    if conversation.begun:
        bound = bound.go_on_from(conversation.begun)
    elif bound.grammar and not calling.is_possible:
        bound = replace(bound, grammar=service.tool_format.wrap(bound.grammar))
    has_marks = (calling.is_possible and service.tool_format.keep_special) or (
        service.prompts.reasoning is not None and service.prompts.reasoning.is_special
    )
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    if not is_silent:
        vocab_size = service.engine.tokenizer.vocab_size
        sampling = parse_sampling(
            request, options, vocab_size, max_tokens=max_tokens, logprobs=logprobs, keep_special=has_marks
        )
    # OpenAI's clients say how long a prompt is to be kept, Anthropic's which part of it.
    whole = (Pin(len(prompt.token_ids), options.retention_s),) if options.retention_s else ()
    pins = find_pins(transcript.hints, transcript.messages, prompt, service.engine.tokenizer) + whole
    reasoning = None if is_silent or conversation.begun else service.prompts.limit_reasoning(prompt, wish.max_tokens)
    is_reasoning = reasoning is not None and reasoning.is_open
    parser = DiscardOutput if is_silent else _choose_parser(calling, bound.tools, service, is_reasoning=is_reasoning)
    inquiry = service.explainer.inquire([prompt], caller, options.compared_with)
    inquiry.tell(*prompt.changes, *clamped, *calling.changes, *transcript.changes)
    messages = () if is_silent else transcript.messages  # what is only prefilled has neither come back nor ended
    return Job(
        endpoint=request.api,
        prompt_param=request.turns_param,
        prompts=[prompt],
        sampling=sampling,
        grammar=bound.grammar,
        inquiry=inquiry,
        reasoning=reasoning,
        caller=caller,
        calling=calling,
        pins=pins,
        has_results=service.keeper.begin(messages),
        num_choices=options.num_choices,
        parser=bound.watch(parser, inquiry),
        is_stream=request.is_stream,
        has_usage=request.has_usage,
        is_silent=is_silent,
    )


def _choose_parser(
    calling: Calling, tools: Sequence[Tool], service: Service, *, is_reasoning: bool
) -> Callable[[], CallParser]:
    if not calling.is_possible and not service.prompts.reasoning:
        return PlainText
    return partial(
        service.prompts.parser,
        tools,
        can_call=calling.is_possible,
        must_call=calling.is_required,
        is_reasoning=is_reasoning,
    )


def make_prompt(
    request: ApiRequest, options: Options, service: Service, scope: str, *, is_silent: bool = False
) -> Prompt:
    """The prompt alone, for those who only ask how long it is."""
    calling, transcript = parse_calling(request, is_strict=service.strict_tools), parse_transcript(request)
    wish = parse_wish(request, service.template_source, service.max_thinking)
    conversation = make_chat_input(request, options, calling, transcript, wish, is_silent=is_silent)
    return _write(conversation, request, service, scope)


def _write(conversation: ChatInput, request: ApiRequest, service: Service, scope: str) -> Prompt:
    try:
        return service.prompts.chat(conversation, scope=scope)
    except PromptTooLong as error:
        if request.api == "messages":
            raise _too_long(error.num_prompt, service) from None
        error.param = request.turns_param
        raise


def make_chat_input(
    request: ApiRequest,
    options: Options,
    calling: Calling,
    transcript: HintedMessages,
    wish: ThinkingWish,
    *,
    is_silent: bool = False,
) -> ChatInput:
    """Tools that may not be called stay in the prompt, so that what is cached of it is still good."""
    messages, is_continued = transcript.messages, request.is_continued
    return ChatInput(
        messages=messages[:-1] if is_continued else messages,
        tools=calling.tools,
        late=[*zip(transcript.late, calling.late, strict=True)],
        is_answer_next=is_continued or request.api == "messages" or not is_silent,
        begun=_parse_beginning(messages, request.turns_param) if is_continued else "",
        extra={**wish.variables, **(options.chat_template_kwargs or {})},
    )


def _parse_beginning(messages: Sequence[Message], param: str) -> str:
    """The last message, as the beginning of the answer."""
    *before, last = messages
    if not before:
        raise RequestError(f"{param}: there is nothing to answer", param=param)
    if last.tool_calls or last.thoughts:
        what = "calls" if last.tool_calls else "thinking"
        raise RequestError(f"{param}: the last turn has {what}, and cannot be continued", param=param)
    return last.content


def _fit(request: ApiRequest, prompt: Prompt, service: Service) -> tuple[int | None, tuple[str, ...]]:
    """Clients ask for more tokens than any context has: they get what is left of it, and are told so."""
    num_prompt = len(prompt.token_ids)
    room = service.engine.max_context - num_prompt
    if room < 1 and request.api == "messages":
        raise _too_long(num_prompt, service)
    if room < 1 or (request.max_tokens or 0) <= room:
        return request.max_tokens, ()
    return room, (f"max_tokens: {request.max_tokens} became {room}, all that the context has room for",)


def _fit_logprobs(most: int, prompt: Prompt, service: Service) -> tuple[int | None, tuple[str, ...]]:
    """An answer of open length ends where it holds as many log probabilities as one may."""
    if most >= service.engine.max_context - len(prompt.token_ids):
        return None, ()
    return most, (f"max_tokens: became {most}, since there are log probabilities for each token",)


def _too_long(num_prompt: int, service: Service) -> RequestError:
    """Anthropic's clients know the words of this refusal: they make the conversation shorter and try again."""
    limit = service.engine.max_context - 1
    return RequestError(f"prompt is too long: {num_prompt} tokens > {limit} maximum", param="messages")
