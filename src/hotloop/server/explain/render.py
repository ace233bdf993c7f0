"""Where an answer's prompt tokens came from: in its usage, and as an explanation on request.

An explanation, and the words in it, is shown only to its owner and to an admin.
"""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from hotloop.chat.compare import find_position, find_words
from hotloop.chat.prompt import Prompt
from hotloop.core.request import Usage, Wait
from hotloop.server.account import Cause, PromptAccount
from hotloop.server.explain.inquiry import CacheExplanation, Diagnosis, Explainer, Explanation
from hotloop.server.tenants import Caller
from hotloop.wire.field import Json, present
from hotloop.wire.usage import ApiUsage

# As it is called in an answer, and in the engine's usage.
_WORK = {
    "sampled_tokens": "num_sampled",
    "forced_tokens": "num_forced",
    "drafted_tokens": "num_drafted",
    "accepted_tokens": "num_accepted",
    "steps": "num_steps",
    "restored_tokens": "num_restored",
    "host_tokens": "num_from_host",
}


def answer_usage(
    usages: Sequence[Usage],
    inquiry: CacheExplanation,
    *,
    num_choices: int = 1,
    num_kept: int | None = None,
    is_prefill_only: bool = False,
) -> ApiUsage:
    """The choices of one prompt lie next to each other; its tokens are counted once, as the first of them found it.
    `num_kept` is how much of a prompt the client asked to keep, if that counts; else all of it is cached now."""
    prompts = usages[::num_choices]
    num_prompt = sum(usage.num_prompt for usage in prompts)
    num_cached = sum(usage.num_cached for usage in prompts)
    num_output = 0 if is_prefill_only else sum(usage.num_output for usage in usages)
    num_written = max((num_prompt if num_kept is None else num_kept) - num_cached, 0)
    num_reasoning = sum(usage.num_reasoning for usage in usages)
    return ApiUsage(num_prompt, num_cached, num_output, num_written, num_reasoning, _render_work(usages, inquiry))


def render_diagnosis(diagnosis: Diagnosis) -> Json:
    """In OpenAI's words, as its responses have them; where it has none, because nothing was changed, unavailable."""
    if diagnosis.outcome != "changed":
        kinds = {"same": "cache_hit", "unknown": "comparison_response_not_found", "unavailable": "unavailable"}
        return {"type": kinds[diagnosis.outcome]}
    return {
        "type": "cache_miss",
        "reason": "tools_changed" if diagnosis.kind == "tool" else "input_changed",
        "cache_missed_tokens": diagnosis.num_missed,
        "comparison_reusable_tokens": diagnosis.num_common,
    }


def _render_work(usages: Sequence[Usage], inquiry: CacheExplanation) -> Json:
    work = {name: sum(getattr(usage, field) for usage in usages) for name, field in _WORK.items()}
    waits = {wait: max(usage.waits_s.get(wait, 0.0) for usage in usages) for wait in Wait}
    waits_ms = {wait.value: round(1000 * wait_s) for wait, wait_s in waits.items() if wait_s >= 0.0005}
    return {**work, "waits_ms": waits_ms, **_render_prompts(inquiry), **present(changes=inquiry.changes or None)}


def _render_prompts(inquiry: CacheExplanation) -> Json:
    accounts = inquiry.accounts()
    if not accounts:
        return {}
    causes: Counter[str] = Counter()
    for account in accounts:
        for cause in account.causes:
            causes[cause.reason] += cause.num_tokens
    return {**_render_counts(accounts), "causes": +causes}


def render_explanation(explanation: Explanation, viewer: Caller, explainer: Explainer) -> Json:
    accounts = explanation.accounts
    return {
        "object": "cache.explanation",
        "id": explanation.answer_id,
        "compared_with": explanation.compared_with,
        "prompt_tokens": sum(account.num_prompt for account in accounts),
        "cached_tokens": sum(account.num_cached for account in accounts),
        **_render_counts(accounts),
        "exact_tokens": explanation.num_exact,
        "changes": explanation.changes,
        "causes": [
            _render_cause(cause, prompt, explainer, viewer)
            for account, prompt in zip_longest(accounts, explanation.prompts)
            for cause in account.causes
        ],
    }


def _render_counts(accounts: Sequence[PromptAccount]) -> Json:
    return {
        "new_tokens": sum(account.num_new for account in accounts),
        "recomputed_tokens": sum(account.num_recomputed for account in accounts),
        "block_tokens": sum(account.num_block for account in accounts),
    }


def _render_cause(cause: Cause, prompt: Prompt | None, explainer: Explainer, viewer: Caller) -> Json:
    rendered: Json = {"cause": cause.reason, "tokens": cause.num_tokens}
    if cause.eviction:
        beneficiary = explainer.name_beneficiary(cause.eviction.beneficiary, viewer)
        evicted_at = round(time.time() - (time.monotonic() - cause.eviction.at), 3)
        rendered |= {"evicted_at": evicted_at, "evicted_for": beneficiary}
    if cause.divergence:
        spot = find_position(cause.divergence, prompt, explainer.spell) if prompt else None
        span = {"kind": spot.kind, "index": spot.index, "offset": spot.offset} if spot else None
        rendered |= {"token_index": cause.divergence.index, "span": span}
        if explainer.level == "words":
            words = find_words(cause.divergence, explainer.spell)
            rendered |= {"before": words.before, "previous": words.previous, "current": words.current}
    return rendered
