"""Libraries: a program each in programs/, which asks, runs the tool `lookup` and prints the answer."""

from typing import Any

from tests.clients.client import Client
from tests.clients.speaking import ANSWER
from tests.server.calls import write_call

_LOOKUP = write_call("lookup", kind="bird")


def _python(name: str, program: str, package: str, **more: Any) -> Client:
    command = ("{py}/bin/python", f"{{programs}}/{program}.py")
    needs = f"py/lib/python3*/site-packages/{package}"
    return Client(name, command, needs, **{"script": (_LOOKUP, ANSWER)} | more)


def _node(name: str, program: str, package: str) -> Client:
    return Client(
        name, ("node", f"{{programs}}/{program}.mjs"), f"npm/node_modules/{package}", script=(_LOOKUP, ANSWER)
    )


LIBRARIES = [
    _python("openai, chat", "openai_chat", "openai"),
    _python("openai, responses", "openai_responses", "openai"),
    _python("anthropic", "anthropic_messages", "anthropic"),
    _python("langgraph", "langgraph_agent", "langgraph"),
    _python("langchain, responses", "langchain_responses", "langchain_openai"),
    _python("openai agents", "openai_agents", "agents", environment={"OPENAI_AGENTS_DISABLE_TRACING": "1"}),
    _python("pydantic-ai", "pydantic_agent", "pydantic_ai"),
    _python("litellm", "litellm_chat", "litellm", environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"}),
    _python(
        "smolagents", "smolagents_agent", "smolagents", script=(_LOOKUP, write_call("final_answer", answer=ANSWER))
    ),
    _python("instructor", "instructor_chat", "instructor", script=('{"word": "owl"}',), has_tools=False, output="owl"),
    _node("openai, js", "openai_chat", "openai"),
    _node("openai, js, responses", "openai_responses", "openai"),
    _node("anthropic, js", "anthropic_messages", "@anthropic-ai/sdk"),
    _node("vercel ai", "vercel_ai", "ai"),
    _node("vercel ai, responses", "vercel_ai_responses", "@ai-sdk/openai"),
]
