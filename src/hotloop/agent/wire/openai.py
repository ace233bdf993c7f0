"""Models behind OpenAI's chat completions and responses: hotloop's, those of vLLM, SGLang, llama.cpp and many more, and
OpenAI's own. The session is named in a header, and in `prompt_cache_key` for those who route by it.
"""

from dataclasses import replace
from typing import ClassVar

from hotloop.agent.model import Ask
from hotloop.agent.wire.served import ServedModel, call_id, make_request
from hotloop.wire.chat.reader import ChatReader
from hotloop.wire.chat.render import render_request as render_chat
from hotloop.wire.field import Json
from hotloop.wire.policy import RenderTarget
from hotloop.wire.responses.reader import ResponsesReader
from hotloop.wire.responses.render import render_request as render_responses


class OpenAIModel(ServedModel):
    """Chat completions. `base_url` ends with `/v1`."""

    path = "/chat/completions"
    # One token, for a hotloop that does not know the field.
    quiet: ClassVar[Json] = {"generate": False, "max_completion_tokens": 1}

    def _render(self, ask: Ask, model: str, *, is_stream: bool) -> Json:
        return render_ask(ask, model, is_plain=self._is_plain, is_stream=is_stream)

    def _reader(self, ask: Ask) -> ChatReader:
        return ChatReader(offered={tool.name for tool in ask.tools}, name_call=lambda _, n: call_id(ask, n))


class ResponsesModel(ServedModel):
    """Responses, none of them stored. `base_url` ends with `/v1`."""

    path = "/responses"

    @property
    def can_prefill_ahead(self) -> bool:
        return False

    def _render(self, ask: Ask, model: str, *, is_stream: bool) -> Json:
        request = make_request(ask, model, has_cache_key=not self._is_plain)
        body = render_responses(replace(request, is_stream=is_stream), RenderTarget(is_plain=self._is_plain))
        sealed = {} if self._is_plain else {"include": ["reasoning.encrypted_content"]}
        return {**body, **sealed, **ask.extra}

    def _reader(self, ask: Ask) -> ResponsesReader:
        return ResponsesReader(name_call=lambda _, n: call_id(ask, n))


def render_ask(ask: Ask, model: str, *, is_plain: bool = False, is_stream: bool = False) -> Json:
    request = make_request(ask, model, has_cache_key=not is_plain)
    target = RenderTarget(
        is_plain=is_plain, takes_signatures=True, limit="max_tokens" if is_plain else "max_completion_tokens"
    )
    return {**render_chat(replace(request, is_stream=is_stream), target), **ask.extra}
