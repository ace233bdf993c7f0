"""Who is examined: a deployment, and what has to be known of it before anything can be measured."""

import secrets
from dataclasses import dataclass

from hotloop.doctor import prompts
from hotloop.doctor.facts import Heard
from hotloop.doctor.recognise import recognise
from hotloop.doctor.wire.deployment import Answered, Deployment
from hotloop.router.kinds import kind_by_url

_MANY_TOKENS = 2000  # enough for the time to show
_FEW_TOKENS = 1400  # hosted APIs cache from 1,024 on, and words differ in length
_READ_S = 3.0  # that a long prompt may take
_MANY_ANSWERED, _FEW_ANSWERED = 64, 16
_ANSWER_S = 3.0  # that an answer may take
_MAX_ANSWER = 2000
_ABSENT = (404, 405)


@dataclass(frozen=True, slots=True)
class Target:
    deployment: Deployment
    kind: str
    prompt_chars: int
    """Of a long prompt that leaves room for an answer, and that a slow deployment can still be asked to read."""
    answer_tokens: int
    """Of an answer that is heard out."""
    max_answer: int
    """Of one that is not."""


async def meet(deployment: Deployment) -> Target:
    """A first short request tells whether it answers at all, how long its tokens are, and how fast it is."""
    known = kind_by_url(deployment.url)
    if known and known.apis == {"messages"}:
        deployment.api = "messages"
    text = prompts.long_text(1200, make_nonce())
    heard = await _ask_first(deployment, text)
    identity = await recognise(deployment)
    num_prefilled = heard.num_prompt or len(text) // 4
    context = identity.context or 3 * _MANY_TOKENS
    num_fast = int(_READ_S * num_prefilled / heard.first_s)
    num_tokens = min(max(num_fast, _FEW_TOKENS), _MANY_TOKENS, context // 3)
    write_s = (heard.total_s - heard.first_s) / max(heard.num_tokens - 1, 1)
    num_answered = int(_ANSWER_S / write_s) if write_s else _MANY_ANSWERED
    return Target(
        deployment,
        identity.kind,
        prompt_chars=num_tokens * len(text) // num_prefilled,
        answer_tokens=min(max(num_answered, _FEW_ANSWERED), _MANY_ANSWERED),
        max_answer=min(_MAX_ANSWER, context // 2),
    )


async def _ask_first(deployment: Deployment, text: str) -> Heard:
    """Chat completions are tried first; whoever has none may have Anthropic's messages."""
    messages = [prompts.user(text)]
    try:
        return await deployment.ask(messages, max_tokens=8)
    except Answered as error:
        if error.status not in _ABSENT or deployment.api == "messages":
            raise
        deployment.api = "messages"
        try:
            return await deployment.ask(messages, max_tokens=8)
        except Answered as other:
            raise error if other.status in _ABSENT else other from None


def make_nonce() -> str:
    """Of a prompt, so that neither an earlier examination nor another probe has warmed anything."""
    return secrets.token_hex(4)
