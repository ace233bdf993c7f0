"""LangChain's agent and the Responses API, streamed: thoughts come back by their ids alone."""

import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def lookup(kind: str) -> str:
    """Looks a word up."""
    return os.environ["WORD"]


model = ChatOpenAI(
    base_url=f"{os.environ['BASE_URL']}/v1", model=os.environ["MODEL"], max_retries=0, use_responses_api=True
)
agent = create_agent(model, [lookup])
question = {"messages": [("user", os.environ["QUESTION"])]}
said = [state for mode, state in agent.stream(question, stream_mode=["messages", "values"]) if mode == "values"]
print(said[-1]["messages"][-1].text)
