"""The bodies Anthropic's clients send to `/v1/messages`, as they are spelt on the wire.

A known field of the wrong type is refused by name; an unknown one is ignored, since clients send many. `null` always
means "not given". Ranges that the core checks are not repeated here.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hotloop.core.errors import RequestError
from hotloop.core.request import SamplingParams
from hotloop.core.schema import json_schema
from hotloop.server.breakpoints import CacheControlBody, tool_hint
from hotloop.server.calling import Calling, make_calling
from hotloop.server.decoding import convert
from hotloop.server.openai.structure import Constraint, blaming
from hotloop.server.openai.wire import MAX_STOPS, CacheSalt, Count, Int64, PriorityName, StopString
from hotloop.server.turns import Turns
from hotloop.wire.field import Field
from hotloop.wire.messages import parse
from hotloop.wire.part import Opaque
from hotloop.wire.policy import Notes
from hotloop.wire.request import Tool


class ThinkingBody(msgspec.Struct, kw_only=True):
    type: str


class FormatBody(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputBody(msgspec.Struct, kw_only=True):
    format: FormatBody | None = None


class MetadataBody(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class DiagnosticsBody(msgspec.Struct, kw_only=True):
    previous_message_id: str | None = None


class PromptBody(msgspec.Struct, kw_only=True):
    """What a prompt is made from: all that `/v1/messages/count_tokens` takes."""

    model: str | None = None
    messages: Annotated[list[Any], Meta(min_length=1)]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    thinking: ThinkingBody | None = None
    output_config: OutputBody | None = None
    cache_control: CacheControlBody | None = None
    cache_salt: CacheSalt | None = None


class MessagesBody(PromptBody, kw_only=True):
    """The last lines are hotloop's own, and OpenAI's words for the same things."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    metadata: MetadataBody | None = None
    diagnostics: DiagnosticsBody | None = None
    service_tier: str | None = None
    thread: dict[str, Any] | None = None

    seed: Int64 | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    shortcuts: bool | None = None
    priority: PriorityName | None = None
    session_id: str | None = None

    @property
    def is_warming(self) -> bool:
        """Whether the prompt is only to be read, so that it is in the cache when it comes again."""
        return self.max_tokens == 0

    @property
    def compared_with(self) -> str | None:
        """The earlier answer the prompt is to be compared with."""
        return self.diagnostics.previous_message_id if self.diagnostics else None

    @property
    def user(self) -> str | None:
        return self.metadata.user_id if self.metadata else None

    @property
    def prompt_cache_key(self) -> None:
        return None


_SPELT_ALIKE = ("temperature", "top_p", "top_k", "seed", "min_tokens", "ignore_eos", "shortcuts")


def parse_turns(body: PromptBody) -> Turns:
    turns = Turns(parse.parse_turns(Field({"system": body.system, "messages": body.messages})), joins=True)
    if not turns.messages:
        raise RequestError("messages: there is nothing to answer", param="messages")
    turns.mark(body.cache_control)
    marks = [(tool.mark, i) for i, tool in enumerate(_parse_tools(body)) if tool.mark is not None]
    hints = [tool_hint(convert(mark, CacheControlBody, f"tools[{i}].cache_control"), i) for mark, i in marks]
    turns.hints[:0] = hints
    return turns


def parse_sampling(body: MessagesBody, *, max_tokens: int, keep_special: bool) -> SamplingParams:
    """`max_tokens` is what the context leaves of the body's own."""
    given: dict[str, Any] = {name: getattr(body, name) for name in _SPELT_ALIKE if getattr(body, name) is not None}
    return SamplingParams(
        **given, max_tokens=max_tokens, stop=tuple(body.stop_sequences or ()), keep_special=keep_special
    )


def parse_calling(body: PromptBody, *, is_strict: bool) -> Calling:
    """`is_strict` is for the tools that do not say themselves whether their schema must be followed."""
    choice = parse.parse_choice(Field({"tool_choice": body.tool_choice}).get("tool_choice"))
    return make_calling(_parse_tools(body), choice, is_strict=is_strict, schema_field="input_schema")


def _parse_tools(body: PromptBody) -> tuple[Tool | Opaque, ...]:
    return parse.parse_tools(Field({"tools": body.tools}), Notes())


def parse_output_constraint(body: PromptBody) -> Constraint | None:
    """The schema that an answer in words must follow, if one is given."""
    param = "output_config.format.schema"
    if body.output_config is None or body.output_config.format is None:
        return None
    with blaming(param):
        return Constraint(param, json_schema(body.output_config.format.schema))


def parse_template_variables(body: PromptBody) -> dict[str, Any]:
    """Models that can think are told when they should not. What else is said about thinking is up to the model."""
    return {"enable_thinking": False} if body.thinking and body.thinking.type == "disabled" else {}
