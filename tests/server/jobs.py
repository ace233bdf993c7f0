"""A job without an engine, for the tests of what renders its answer."""

from hotloop.core.request import SamplingParams
from hotloop.server.calling import Calling
from hotloop.server.explain.inquiry import NO_INQUIRY
from hotloop.server.job import Job
from hotloop.server.tenants import NOBODY


def make_job(calling: Calling | None = None, logprobs: int | None = None) -> Job:
    return Job(
        endpoint="chat",
        prompt_param="messages",
        prompts=[],
        sampling=SamplingParams(logprobs=logprobs),
        grammar=None,
        inquiry=NO_INQUIRY,
        caller=NOBODY,
        calling=calling or Calling(),
    )
