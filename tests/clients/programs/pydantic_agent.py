"""An agent of pydantic-ai's."""

import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(os.environ["MODEL"], provider=OpenAIProvider(base_url=f"{os.environ['BASE_URL']}/v1"))
agent = Agent(model)


@agent.tool_plain
def lookup(kind: str) -> str:
    """Looks a word up."""
    return os.environ["WORD"]


print(agent.run_sync(os.environ["QUESTION"]).output)
