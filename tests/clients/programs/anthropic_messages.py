"""A loop of two turns by Anthropic's client, streamed."""

import os

from anthropic import Anthropic

TOOL = {
    "name": "lookup",
    "description": "Looks a word up.",
    "input_schema": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
}
client = Anthropic(base_url=os.environ["BASE_URL"], max_retries=0)
messages = [{"role": "user", "content": os.environ["QUESTION"]}]
while True:
    with client.messages.stream(model=os.environ["MODEL"], max_tokens=200, messages=messages, tools=[TOOL]) as stream:
        message = stream.get_final_message()
    messages.append(
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}
    )
    calls = [block for block in message.content if block.type == "tool_use"]
    if not calls:
        print(message.content[-1].text)
        break
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": os.environ["WORD"]} for call in calls]
    messages.append({"role": "user", "content": results})
