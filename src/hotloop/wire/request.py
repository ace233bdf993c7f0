"""A request of any API: what is asked of which model, and how the answer should be given."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from hotloop.wire.field import Body, Field, Json
from hotloop.wire.part import Api, Opaque, Turn, flat_name

ChoiceMode = Literal["auto", "none", "required"]

TEXT_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""What a custom tool takes where there are only functions: one text."""


@dataclass(frozen=True, slots=True)
class ApiTool:
    """A function, or a custom tool, which takes plain text that may follow a grammar (`form`)."""

    name: str
    description: str | None = None
    schema: Json | None = None
    is_strict: bool | None = None
    namespace: str | None = None
    is_custom: bool = False
    form: Json | None = None
    is_deferred: bool = False
    """Whether it is told of only where a `ToolChange` names it."""
    is_inline: bool = False
    """Whether a `ToolChange` defines it, rather than the list of tools."""
    builtin: Json | None = None
    """A tool that its maker has published, as it was named: it goes back to the same API so."""
    mark: Json | None = None
    at: Field | None = field(default=None, compare=False, repr=False)

    @property
    def flat_name(self) -> str:
        return flat_name(self.name, self.namespace)

    def as_function(self) -> "ApiTool":
        """The same tool for an API that has functions only, and no namespaces."""
        if not self.is_custom:
            return ApiTool(self.flat_name, self.description, self.schema, self.is_strict, mark=self.mark, at=self.at)
        description = self.description or ""
        if self.form and (definition := self.form.get("definition")):
            description += f"\nThe input follows this {self.form.get('syntax') or ''} grammar:\n{definition}"
        return ApiTool(self.flat_name, description.strip(), TEXT_INPUT, mark=self.mark, at=self.at)


def is_inline(tool: ApiTool | Opaque) -> bool:
    return isinstance(tool, ApiTool) and tool.is_inline


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tools may or must be called; `None` is for what was not said."""

    mode: ChoiceMode | None = None
    name: str | None = None
    """The one tool to call, flat."""
    allowed: tuple[str, ...] | None = None
    """The tools that may be called, flat, where not all may."""
    is_parallel: bool | None = None


@dataclass(frozen=True, slots=True)
class OutputShape:
    """The answer is JSON: of a schema, or any object. `about` is what else is said: name, strict, description."""

    schema: Json | None = None
    about: Json = field(default_factory=dict)
    at: Field | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Cache:
    """What is said about keeping the whole prompt: Anthropic's mark, OpenAI's key, retention and options."""

    mark: Json | None = None
    key: str | None = None
    retention: str | None = None
    options: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request. Values that APIs spell differently are in OpenAI's words."""

    api: Api
    model: str
    turns: tuple[Turn, ...]
    tools: tuple[ApiTool | Opaque, ...] = ()
    choice: Choice = field(default_factory=Choice)
    is_legacy: bool = False
    """Whether tools were offered in OpenAI's older words, `functions`: the answer has one `function_call`."""
    shape: OutputShape | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    is_stream: bool = False
    has_usage: bool = False
    effort: str | None = None
    thinking: Json | None = None
    verbosity: str | None = None
    user: str | None = None
    service_tier: str | None = None
    cache: Cache = field(default_factory=Cache)
    continues_last: bool = False
    own: Mapping[str, object] = field(default_factory=dict)
    fields: Mapping[str, object] = field(default_factory=dict)
    """Fields that are not known here, as they came."""

    def with_rest(self, body: Body, own: Set[str]) -> "ApiRequest":
        """With what was not read of the body; `own` are the names that mean something to its own API only."""
        own_fields, unknown = body.split_rest(own)
        return replace(self, own={**self.own, **own_fields}, fields=unknown)

    @property
    def is_continued(self) -> bool:
        """Whether the last turn is the beginning of the answer. In Anthropic's messages it is if it is the
        assistant's; a chat has to say so."""
        return self.continues_last or (self.api == "messages" and self.turns[-1].role == "assistant")

    @property
    def omits_thoughts(self) -> bool:
        """Whether an answer in Anthropic's messages does not show what was thought."""
        return (self.thinking or {}).get("display") == "omitted"

    @property
    def custom_names(self) -> frozenset[str]:
        return frozenset(tool.flat_name for tool in self.tools if isinstance(tool, ApiTool) and tool.is_custom)

    @property
    def turns_param(self) -> str:
        return "input" if self.api == "responses" else "messages"
