// A loop of two turns by Anthropic's client for JavaScript, streamed.
import Anthropic from "@anthropic-ai/sdk";

const { BASE_URL, MODEL, QUESTION, WORD } = process.env;
const client = new Anthropic({ baseURL: BASE_URL, maxRetries: 0 });
const tools = [
  {
    name: "lookup",
    description: "Looks a word up.",
    input_schema: { type: "object", properties: { kind: { type: "string" } }, required: ["kind"] },
  },
];
const messages = [{ role: "user", content: QUESTION }];
for (;;) {
  const message = await client.messages.stream({ model: MODEL, max_tokens: 200, messages, tools }).finalMessage();
  messages.push({ role: "assistant", content: message.content });
  const calls = message.content.filter((block) => block.type === "tool_use");
  if (!calls.length) {
    console.log(message.content.at(-1).text);
    break;
  }
  messages.push({ role: "user", content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: WORD })) });
}
