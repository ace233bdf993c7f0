"""A loop of two turns by OpenAI's client and the Responses API, each turn given the one before by its id."""

import os

from openai import OpenAI

TOOL = {
    "type": "function",
    "name": "lookup",
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
    "strict": False,
}
client = OpenAI(base_url=f"{os.environ['BASE_URL']}/v1", max_retries=0)
response = client.responses.create(model=os.environ["MODEL"], input=os.environ["QUESTION"], tools=[TOOL])
while calls := [item for item in response.output if item.type == "function_call"]:
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": os.environ["WORD"]} for call in calls
    ]
    response = client.responses.create(
        model=os.environ["MODEL"], input=results, tools=[TOOL], previous_response_id=response.id
    )
print(response.output_text)
