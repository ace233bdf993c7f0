"""LangGraph's ready-made agent."""

import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def lookup(kind: str) -> str:
    """Looks a word up."""
    return os.environ["WORD"]


model = ChatOpenAI(base_url=f"{os.environ['BASE_URL']}/v1", model=os.environ["MODEL"], max_retries=0)
agent = create_agent(model, [lookup])
print(agent.invoke({"messages": [("user", os.environ["QUESTION"])]})["messages"][-1].content)
