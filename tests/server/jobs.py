"""A job without an engine, for the tests of what renders its answer."""

from hotloop.chat.chat import Prepared
from hotloop.core.request import SamplingParams
from hotloop.server.explain.inquiry import NO_INQUIRY
from hotloop.server.job import Job
from hotloop.server.tenants import NOBODY


def make_job(*, can_call: bool = False, logprobs: int | None = None) -> Job:
    return Job(
        endpoint="chat",
        prompt_param="messages",
        prepared=Prepared(can_call=can_call),
        sampling=SamplingParams(logprobs=logprobs),
        inquiry=NO_INQUIRY,
        caller=NOBODY,
    )
