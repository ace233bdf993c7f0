"""Clients for servers on loopback, which have no TLS: to read the certificates would take longer than many a test."""

from typing import Any

import anthropic
import httpx
import openai


def http_at(url: str, timeout: float = 60) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=timeout, verify=False)


def openai_at(url: str, api_key: str = "none") -> openai.OpenAI:
    http = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0, timeout=60, http_client=http)


def async_openai_at(url: str) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60, http_client=http)


def claude_at(url: str, **fields: Any) -> anthropic.Anthropic:
    http = anthropic.DefaultHttpxClient(verify=False)
    return anthropic.Anthropic(
        base_url=url, max_retries=0, timeout=60, http_client=http, **{"api_key": "none"} | fields
    )
