"""Clients for servers on loopback, which have no TLS: to read the certificates would take longer than many a test.

Those of others are imported when one is made: it takes seconds, and processes that tests start need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import anthropic
    import openai


def http_at(url: str, timeout: float = 60) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=timeout, verify=False)


def openai_at(url: str, api_key: str = "none") -> openai.OpenAI:
    import openai  # noqa: PLC0415

    http = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0, timeout=60, http_client=http)


def async_openai_at(url: str) -> openai.AsyncOpenAI:
    import openai  # noqa: PLC0415

    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60, http_client=http)


def claude_at(url: str, **fields: Any) -> anthropic.Anthropic:
    import anthropic  # noqa: PLC0415

    http = anthropic.DefaultHttpxClient(verify=False)
    return anthropic.Anthropic(
        base_url=url, max_retries=0, timeout=60, http_client=http, **{"api_key": "none"} | fields
    )
