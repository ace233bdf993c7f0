"""A model from its address.

    http://localhost:8700/v1                  any server that speaks OpenAI's chat completions; its first model
    http://localhost:8700/v1#smollm2-135m     the model of that name on it
    anthropic:http://localhost:8700#name      the same, asked by Anthropic's messages
    responses:http://localhost:8700/v1#name   the same, asked by OpenAI's responses
    openai:gpt-5  anthropic:claude-opus-4     OpenAI's and Anthropic's own
    responses:gpt-5                           OpenAI's own, asked by its responses

Keys are handed in: nothing here reads the environment.
"""

from hotloop.agent.model import Model
from hotloop.agent.wire.anthropic import AnthropicModel
from hotloop.agent.wire.openai import OpenAIModel, ResponsesModel
from hotloop.agent.wire.served import ServedModel
from hotloop.core.errors import ConfigError

_WEB = ("http://", "https://")
_OPENAI, _ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"
_KINDS: dict[str, tuple[type[ServedModel], str]] = {
    "openai": (OpenAIModel, _OPENAI),
    "responses": (ResponsesModel, _OPENAI),
    "anthropic": (AnthropicModel, _ANTHROPIC),
}


def open_model(address: str, *, api_key: str | None = None, is_plain: bool = False) -> Model:
    """The model at an address; nothing is asked of its server yet. Raises ConfigError if it is no address."""
    kind, _, place = (f"openai:{address}" if address.startswith(_WEB) else address).partition(":")
    if kind not in _KINDS or not place:
        raise ConfigError(f"no model at {address!r}: give an address such as http://localhost:8700/v1 or openai:NAME")
    served, hosted_url = _KINDS[kind]
    if place.startswith(_WEB):
        url, _, name = place.partition("#")
        return served(url, name or None, api_key=api_key, is_plain=is_plain)
    if not api_key:
        raise ConfigError(f"{address} needs a key: open_model({address!r}, api_key=...)")
    return served(hosted_url, place, api_key=api_key, is_plain=is_plain)
