"""What an answer says about its tokens, in the words of all APIs, and what no other server tells."""

from collections.abc import Sequence

from hotloop.core.request import Usage, Wait
from hotloop.server.explain.inquiry import Diagnosis, Inquiry
from hotloop.server.explain.render import render_reading
from hotloop.wire import usage as wire
from hotloop.wire.field import Json

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
    inquiry: Inquiry,
    *,
    num_choices: int = 1,
    num_kept: int | None = None,
    is_silent: bool = False,
) -> wire.Usage:
    """The choices of one prompt lie next to each other; its tokens are counted once, as the first of them found it.

    What was computed of a prompt is cached now; `num_kept` is how much of it the client asked to keep, if that counts.
    """
    prompts = usages[::num_choices]
    num_prompt = sum(usage.num_prompt for usage in prompts)
    num_cached = sum(usage.num_cached for usage in prompts)
    num_output = 0 if is_silent else sum(usage.num_output for usage in usages)
    num_written = max((num_prompt if num_kept is None else num_kept) - num_cached, 0)
    return wire.Usage(num_prompt, num_cached, num_output, num_written, hotloop=_render_work(usages, inquiry))


def render_diagnosis(diagnosis: Diagnosis) -> Json:
    """In OpenAI's words, as its responses have them; where it has none, because nothing was changed, unavailable."""
    match diagnosis.outcome:
        case "changed":
            return {
                "type": "cache_miss",
                "reason": "tools_changed" if diagnosis.kind == "tool" else "input_changed",
                "cache_missed_tokens": diagnosis.num_missed,
                "comparison_reusable_tokens": diagnosis.num_common,
            }
        case "same":
            return {"type": "cache_hit"}
        case "unknown":
            return {"type": "comparison_response_not_found"}
        case "unavailable":
            return {"type": "unavailable"}


def _render_work(usages: Sequence[Usage], inquiry: Inquiry) -> Json:
    """How the tokens of all choices came about, and those of their prompts."""
    work = {name: sum(getattr(usage, field) for usage in usages) for name, field in _WORK.items()}
    waits = {wait: max(usage.waits_s.get(wait, 0.0) for usage in usages) for wait in Wait}
    waits_ms = {wait.value: round(1000 * wait_s) for wait, wait_s in waits.items() if wait_s >= 0.0005}
    return {**work, "waits_ms": waits_ms, **render_reading(inquiry)}
