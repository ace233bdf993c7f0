"""An explanation as it is told: counts and causes to whoever shares what was read, words only to whose they are."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from hotloop.chat.compare import find_spot, find_words
from hotloop.chat.prompt import Prompt
from hotloop.server.account import Account, Cause
from hotloop.server.explain.inquiry import Explainer, Explanation, Inquiry, unix_time
from hotloop.server.tenants import Caller
from hotloop.wire.field import Json


def render_reading(inquiry: Inquiry) -> Json:
    """What the usage of an answer says about its prompts; nothing if nothing is known."""
    accounts = inquiry.accounts()
    if not accounts:
        return {}
    changes = {"changes": inquiry.changes} if inquiry.changes else {}
    return {**_render_counts(accounts), "causes": sum_causes(accounts), **changes}


def sum_causes(accounts: Iterable[Account]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for account in accounts:
        for cause in account.causes:
            sums[cause.reason] = sums.get(cause.reason, 0) + cause.num_tokens
    return {reason: num_tokens for reason, num_tokens in sums.items() if num_tokens}


def render_explanation(explanation: Explanation, viewer: Caller, explainer: Explainer) -> Json:
    """Takes a moment, since the parts of a prompt are worked out."""
    accounts = [part.account for part in explanation.parts]
    is_owner = viewer.owner == explanation.caller.owner
    compared = [part.compared_with for part in explanation.parts if is_owner]
    changes = dict.fromkeys(change for part in explanation.parts for change in part.changes)
    return {
        "object": "cache.explanation",
        "id": explanation.answer_id,
        "compared_with": next(filter(None, compared), None),
        "prompt_tokens": sum(account.num_prompt for account in accounts),
        "cached_tokens": sum(account.num_cached for account in accounts),
        **_render_counts(accounts),
        "exact_tokens": sum(part.num_exact for part in explanation.parts),
        "changes": [*changes],
        "causes": [
            _render_cause(cause, prompt, explainer, viewer, is_owner=is_owner)
            for part, prompt in zip_longest(explanation.parts, explanation.prompts)
            for cause in part.account.causes
        ],
    }


def _render_counts(accounts: Sequence[Account]) -> Json:
    num_recomputed = sum(account.num_recomputed for account in accounts)
    return {
        "new_tokens": sum(account.num_new for account in accounts),
        "recomputed_tokens": num_recomputed,
        "reread_tokens": num_recomputed,  # the old name; it goes with the next version
        "block_tokens": sum(account.num_block for account in accounts),
    }


def _render_cause(cause: Cause, prompt: Prompt | None, explainer: Explainer, viewer: Caller, *, is_owner: bool) -> Json:
    rendered: Json = {"cause": cause.reason, "tokens": cause.num_tokens}
    if cause.eviction:
        beneficiary = explainer.name_beneficiary(cause.eviction.beneficiary, viewer.scope)
        rendered |= {"evicted_at": unix_time(cause.eviction.at), "evicted_for": beneficiary}
    if cause.parting and is_owner:
        spot = find_spot(cause.parting, prompt, explainer.spell) if prompt else None
        span = {"kind": spot.kind, "index": spot.index, "offset": spot.offset} if spot else None
        rendered |= {"token_index": cause.parting.index, "span": span}
        if explainer.level == "words":
            words = find_words(cause.parting, explainer.spell)
            rendered |= {"before": words.before, "previous": words.previous, "current": words.current}
    return rendered
