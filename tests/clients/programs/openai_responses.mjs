// A loop of two turns by OpenAI's client for JavaScript and the Responses API, streamed, with the whole history each time.
import OpenAI from "openai";

const { BASE_URL, MODEL, QUESTION, WORD } = process.env;
const client = new OpenAI({ baseURL: `${BASE_URL}/v1`, maxRetries: 0 });
const tools = [
  {
    type: "function",
    name: "lookup",
    description: "Looks a word up.",
    parameters: { type: "object", properties: { kind: { type: "string" } }, required: ["kind"] },
    strict: false,
  },
];
const input = [{ role: "user", content: QUESTION }];
for (;;) {
  const response = await client.responses.stream({ model: MODEL, input, tools }).finalResponse();
  input.push(...response.output);
  const calls = response.output.filter((item) => item.type === "function_call");
  if (!calls.length) {
    console.log(response.output_text);
    break;
  }
  input.push(...calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: WORD })));
}
