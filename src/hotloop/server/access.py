"""What the access log says of a request that the engine ran, once it is over."""

from collections.abc import Sequence

from hotloop.core.request import Priority, Request
from hotloop.http.logs import Facts, first_token
from hotloop.server.job import Job


def describe_access(model: str, began_at: float, job: Job, requests: Sequence[Request]) -> Facts:
    prompts = [request.usage for request in requests[:: job.num_choices]]  # the choices of a prompt share it
    firsts = [request.first_token_at for request in requests if request.first_token_at]
    finish = requests[0].finish_reason
    return {
        "session": job.caller.session_id,
        "model": model,
        "class": Priority(requests[0].priority).name.lower(),
        **first_token(began_at, min(firsts, default=None)),
        "prompt_tokens": sum(usage.num_prompt for usage in prompts),
        "cached_tokens": sum(usage.num_cached for usage in prompts),
        "output_tokens": sum(request.usage.num_output for request in requests),
        "finish": finish.value if finish else "disconnected",
    }
