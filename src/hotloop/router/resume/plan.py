"""How another replica is asked to go on with an answer: with its tokens, with its text, or from the beginning.

    hotloop            the same request, and the tokens of the answer so far: all of it is told anew, none of it is
                       chosen anew
    vLLM, SGLang       the conversation with the text so far as its last message, which is continued
    Anthropic          the same, as its prefill
    nothing was told   the same request

What is begun and is neither text nor tokens (a call, a thought) is written anew by the other replica, behind the text
before it; so is text that a grammar holds, which would begin with what comes next. That is only tried where the request
says that the same words will come, with temperature 0 or a seed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import msgspec

from hotloop.core.errors import HotloopError, RequestError
from hotloop.router.answer import MAX_TOKENS
from hotloop.router.kinds import CHAT, KINDS, Api, Resumes
from hotloop.router.request import RoutedRequest, parse_request
from hotloop.router.resume.splice import NOTHING, Given, Splice, SplicedStream, TranslatedSplice
from hotloop.router.resume.told import Told, ToldAnswer
from hotloop.router.translate import translate
from hotloop.wire.field import Json
from hotloop.wire.formats import FORMATS
from hotloop.wire.part import Api as Format
from hotloop.wire.policy import Notes
from hotloop.wire.reader import name_call
from hotloop.wire.responses.items import ItemStore

_LIMITS = {"max_completion_tokens": 1, "max_tokens": 1, "min_tokens": 0}
"""Counts of the answer's tokens, and the least that each may be."""
_PENALTIES = ("presence_penalty", "frequency_penalty")
"""Which count the tokens of an answer, and not those of its prompt."""
_GRAMMARS = {"structured_outputs", "structural_tag", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
_GRAMMARS |= {"json_schema", "regex", "choice", "grammar", "ebnf"}
"""Fields by which engines are told what an answer must look like, besides `response_format`."""


class CannotResume(HotloopError):
    """Why an answer cannot go on elsewhere."""


@dataclass(frozen=True, slots=True)
class Plan:
    request: RoutedRequest
    how: str
    given: str = ""
    """What of the answer the replica is given as text, and does not repeat."""
    is_exact: bool = True
    """Whether it must tell all else that was told to the last space."""


def make_plans(request: RoutedRequest, told: Told, answer: ToldAnswer, items: ItemStore) -> Iterator[Plan]:
    """The best first. Raises CannotResume where there is none."""
    if answer.is_nothing:
        yield Plan(request, "again")
        return
    try:
        body = request.read_body()
        _check(body, told)
        if 0 < len(told.token_ids) < MAX_TOKENS:
            names = {"token_ids": told.token_ids, "call_ids": answer.call_ids}
            response_id = {"response_id": answer.first["id"]} if request.api == "responses" else {}
            resumed = replace(request, raw=request.replace({"resume": names | response_id}), kinds=_kinds("tokens"))
            yield Plan(resumed, "tokens")
        yield from _continue_text(request, answer, items.resolve(body, request.tenant.may_see))
    except RequestError as error:
        raise CannotResume(str(error)) from None


def _check(body: Mapping[str, Any], told: Told) -> None:
    if not told.is_whole:
        raise CannotResume("it is too long to be kept")
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        raise CannotResume("it is one of several choices")
    if body.get("logprobs") not in (None, False) or body.get("top_logprobs") is not None or body.get("echo"):
        raise CannotResume("it has log probabilities, or its prompt")


def _continue_text(request: RoutedRequest, answer: ToldAnswer, body: Json) -> Iterator[Plan]:
    is_chat = request.api in ("chat", "completions")
    asked = body if is_chat else translate(request.api, frozenset({"chat"}), body).request()[1]
    is_settled = asked.get("temperature") == 0 or asked.get("seed") is not None
    if not is_settled and not answer.is_text_alone:
        raise CannotResume("a call or a thought had begun, which another replica would write in other words")
    if not is_settled and _has_grammar(asked):
        raise CannotResume("its text is held to a grammar, and another replica would write it in other words")
    text = answer.text if _can_be_given(answer, asked, is_settled=is_settled) else ""
    is_exact = asked.get("temperature") == 0
    shown = text.rstrip() if is_exact else text  # where a template trims it, the last space is written anew
    if request.api == "completions":
        if isinstance(prompt := body.get("prompt"), str):
            raw = request.replace({"prompt": prompt + shown})
            yield Plan(replace(request, raw=raw, kinds=_kinds("message")), "text", shown, is_exact)
        return
    ways: tuple[tuple[Resumes, str], ...] = (("message", shown), ("prefill", text.rstrip()))
    for way, given in ways:
        chat = _continue_chat(asked, given) if given else asked
        yield Plan(_as_chat(request, chat, _kinds(way)), "text", given, is_exact)


def _can_be_given(answer: ToldAnswer, asked: Json, *, is_settled: bool) -> bool:
    """Whether what comes behind the text is then what would have come."""
    is_bound = is_settled and any(asked.get(name) for name in (*_PENALTIES, "stop"))
    begins_with_text = all(atom.key[0] != "thought" for atom in answer.atoms)
    return begins_with_text and not is_bound and not _has_grammar(asked)


def _has_grammar(asked: Json) -> bool:
    shape = asked.get("response_format")
    is_shaped = isinstance(shape, dict) and shape.get("type") != "text"
    return is_shaped or any(asked.get(name) for name in _GRAMMARS)


def _continue_chat(chat: Json, text: str) -> Json:
    """With the text as its last message, or at the end of the one that it was to continue."""
    messages, said = [*chat["messages"]], {"role": "assistant", "content": text}
    if chat.get("continue_final_message") and messages and isinstance(messages[-1], dict):
        last = messages.pop()
        said = {**last, "content": _append(last.get("content"), text)}
    return {**chat, "messages": [*messages, said], "continue_final_message": True, "add_generation_prompt": False}


def _append(content: Any, text: str) -> Any:
    """To the last of its parts: engines put something between two."""
    if not isinstance(content, list):
        return f"{content or ''}{text}"
    *parts, last = content or [{}]
    said = last.get("text") if isinstance(last, dict) else None
    if isinstance(said, str):
        return [*parts, {**last, "text": said + text}]
    return [*content, {"type": "text", "text": text}]


def _as_chat(request: RoutedRequest, body: Json, kinds: frozenset[str]) -> RoutedRequest:
    raw = parse_request(CHAT, request.headers, msgspec.json.encode(body), request.tenant, request.scope)
    session, name = request.session, request.session_name
    return replace(raw, session=session, session_name=name, priority=request.priority, kinds=kinds)


def give(plan: Plan, num_tokens: int, answer: ToldAnswer) -> tuple[RoutedRequest, Given]:
    """What a replica is sent, with room for as many tokens less as the answer has: so many. One it must say."""
    if not (known := plan.given.rstrip()):  # the space behind it may have been trimmed
        return plan.request, NOTHING
    body = plan.request.read_body()
    limits = {name: body[name] for name in _LIMITS if isinstance(body.get(name), int)}
    most = min((limit for name, limit in limits.items() if _LIMITS[name]), default=num_tokens + 1)
    is_full = answer.is_text_alone and num_tokens >= most > 0
    told = Given(known, min(num_tokens, most), is_full or (answer.is_ended and answer.is_text_alone), is_full)
    limits = {name: max(_LIMITS[name], limit - num_tokens) for name, limit in limits.items()}
    if told.is_all:
        name = "max_completion_tokens" if "max_completion_tokens" in limits else "max_tokens"
        limits |= {name: 1, **dict.fromkeys(limits.keys() & {"min_tokens"}, 0)}
    return replace(plan.request, raw=plan.request.replace(limits)), told


def read_resumed(request: RoutedRequest, plan: Plan, answer: ToldAnswer, given: Given) -> SplicedStream:
    """Raises RequestError where the client's own body cannot be read."""
    api, far, splice = request.api, plan.request.api, Splice(request.api, answer, is_exact=plan.is_exact)
    if not is_format(api) or not is_format(far):
        splice.skip(given)
        return SplicedStream(splice)
    body, near = request.read_body(), FORMATS[api]
    writer = near.writer(near.parse(body, Notes()), body)
    return TranslatedSplice(splice, FORMATS[far].reader(name_call), writer, answer, given)


def is_format(api: Api) -> TypeGuard[Format]:
    return api in FORMATS


def _kinds(way: Resumes) -> frozenset[str]:
    """A hotloop can be given text as well."""
    also = {"hotloop"} if way == "message" else set()
    return frozenset(also | {name for name, kind in KINDS.items() if kind.resumes == way})
