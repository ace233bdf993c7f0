"""A loop of two turns by litellm."""

import os

import litellm
from lookup import TOOLS

messages = [{"role": "user", "content": os.environ["QUESTION"]}]
while True:
    answer = litellm.completion(
        model=f"openai/{os.environ['MODEL']}",
        api_base=f"{os.environ['BASE_URL']}/v1",
        messages=messages,
        tools=TOOLS,
        num_retries=0,
    )
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        print(message.content)
        break
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": os.environ["WORD"]} for call in message.tool_calls
    ]
