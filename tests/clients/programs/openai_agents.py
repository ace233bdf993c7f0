"""OpenAI's Agents SDK, over the Responses API."""

import os

from agents import Agent, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI


@function_tool
def lookup(kind: str) -> str:
    """Looks a word up."""
    return os.environ["WORD"]


client = AsyncOpenAI(base_url=f"{os.environ['BASE_URL']}/v1", max_retries=0)
model = OpenAIResponsesModel(model=os.environ["MODEL"], openai_client=client)
print(Runner.run_sync(Agent(name="words", model=model, tools=[lookup]), os.environ["QUESTION"]).final_output)
