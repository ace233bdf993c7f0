"""An agent of smolagents' that calls tools."""

import os

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def lookup(kind: str) -> str:
    """Looks a word up.

    Args:
        kind: Which one.
    """
    return os.environ["WORD"]


model = OpenAIServerModel(os.environ["MODEL"], api_base=f"{os.environ['BASE_URL']}/v1", api_key="none")
print(ToolCallingAgent([lookup], model, max_steps=3, verbosity_level=0).run(os.environ["QUESTION"]))
