"""A loop of two turns by OpenAI's client, streamed."""

import json
import os

from lookup import TOOLS
from openai import OpenAI

client = OpenAI(base_url=f"{os.environ['BASE_URL']}/v1", max_retries=0)
messages = [{"role": "user", "content": os.environ["QUESTION"]}]
while True:
    with client.chat.completions.stream(model=os.environ["MODEL"], messages=messages, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
    if not message.tool_calls:
        print(message.content)
        break
    for call in message.tool_calls:
        assert json.loads(call.function.arguments) == {"kind": "bird"}
        messages.append({"role": "tool", "tool_call_id": call.id, "content": os.environ["WORD"]})
