"""The tools of a response: functions, custom tools that take plain text, and namespaces of both.

The model sees functions only; `Toolbox` knows what each of them was on the wire, so that its calls go back as such.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hotloop.core.errors import RequestError
from hotloop.core.message import Tool
from hotloop.server.openai.render import Json
from hotloop.server.openai.tools import (
    AllowedBody,
    AllowedToolsBody,
    Calling,
    ChoiceBody,
    NameBody,
    NamedBody,
    choose_tools,
)
from hotloop.server.openai.wire import convert
from hotloop.wire import request as wire
from hotloop.wire.part import flat_name
from hotloop.wire.request import TEXT_INPUT

# What coding agents offer unasked, and a model can do without. Nobody would run it here, so the model is not told.
LEFT_OUT = ("web_search", "web_search_preview", "image_generation", "tool_search")

Name = Annotated[str, Meta(min_length=1)]


class FunctionBody(msgspec.Struct, kw_only=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class InputFormatBody(msgspec.Struct, kw_only=True):
    """What a custom tool's text should look like. The model is told; nothing holds it to that."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class CustomBody(msgspec.Struct, kw_only=True):
    name: Name
    description: str | None = None
    format: InputFormatBody | None = None


class NamespaceBody(msgspec.Struct, kw_only=True):
    name: Name
    tools: list[dict[str, Any]]


class NamedFunction(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="function"):
    name: str
    namespace: str | None = None


class NamedCustom(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="custom"):
    name: str
    namespace: str | None = None


class AllowedTools(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedFunction | NamedCustom]


FlatChoice = Literal["auto", "none", "required"] | NamedFunction | NamedCustom | AllowedTools


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as the model sees it, and as the wire does."""

    tool: Tool
    name: str
    namespace: str | None = None
    is_custom: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What may be called. `bodies` are the tools as the client hears of them again."""

    calling: Calling
    offers: Mapping[str, Offer]
    bodies: Sequence[Json]

    @property
    def wire_tools(self) -> list[wire.Tool]:
        offers = self.offers.values()
        return [wire.Tool(offer.name, namespace=offer.namespace, is_custom=offer.is_custom) for offer in offers]


def parse_toolbox(
    bodies: Sequence[Mapping[str, Any]], choice: FlatChoice | None, *, is_strict: bool, is_parallel: bool
) -> Toolbox:
    """`is_strict` is for the functions that do not say themselves whether their schema must be followed."""
    told = [(f"tools[{i}]", body) for i, body in enumerate(bodies) if body.get("type") not in LEFT_OUT]
    offers = [offer for place, body in told for offer in _parse_tool(place, body, is_strict)]
    tools = tuple(offer.tool for offer in offers)
    calling = choose_tools(tools, _parse_choice(choice), is_parallel=is_parallel)
    return Toolbox(
        calling=replace(calling, places={offer.tool.name: offer.place for offer in offers}),
        offers={offer.tool.name: offer for offer in offers},
        bodies=[_render_tool(body, is_strict) for _, body in told],
    )


def _parse_tool(place: str, body: Mapping[str, Any], is_strict: bool, namespace: str | None = None) -> Iterator[Offer]:
    match body.get("type"):
        case "function":
            yield _parse_function(place, convert(body, FunctionBody, place), is_strict, namespace)
        case "custom":
            yield _parse_custom(place, convert(body, CustomBody, place), namespace)
        case "namespace" if namespace is None:
            inner = convert(body, NamespaceBody, place)
            for i, tool in enumerate(inner.tools):
                yield from _parse_tool(f"{place}.tools[{i}]", tool, is_strict, inner.name)
        case kind:
            reason = f"{place}: tools of type {kind!r:.100} are not supported, only functions and custom tools are"
            raise RequestError(reason, param=place)


def _parse_function(place: str, body: FunctionBody, is_strict: bool, namespace: str | None) -> Offer:
    tool = Tool(
        flat_name(body.name, namespace),
        body.description or "",
        body.parameters or {},
        is_strict if body.strict is None else body.strict,
    )
    return Offer(tool, body.name, namespace, place=f"{place}.parameters")


def _parse_custom(place: str, body: CustomBody, namespace: str | None) -> Offer:
    description = body.description or ""
    if body.format and body.format.definition:
        description += f"\nThe input follows this {body.format.syntax or ''} grammar:\n{body.format.definition}"
    tool = Tool(flat_name(body.name, namespace), description.strip(), TEXT_INPUT)
    return Offer(tool, body.name, namespace, is_custom=True, place=place)


def _parse_choice(choice: FlatChoice | None) -> ChoiceBody | None:
    """The same in the words of a chat, which says the same things one level deeper."""
    match choice:
        case NamedFunction() | NamedCustom():
            return _named(choice)
        case AllowedTools():
            tools = [_named(tool) for tool in choice.tools]
            return AllowedToolsBody(allowed_tools=AllowedBody(mode=choice.mode, tools=tools))
        case _:
            return choice


def _named(choice: NamedFunction | NamedCustom) -> NamedBody:
    return NamedBody(function=NameBody(name=flat_name(choice.name, choice.namespace)))


def _render_tool(body: Mapping[str, Any], is_strict: bool) -> Json:
    """As given; what was not said about a function is filled in."""
    if body["type"] != "function":
        return dict(body)
    filled = {"description": None, "parameters": None, **body}
    return {**filled, "strict": is_strict if body.get("strict") is None else body["strict"]}
