// A loop of two turns by OpenAI's client for JavaScript, streamed.
import OpenAI from "openai";

const { BASE_URL, MODEL, QUESTION, WORD } = process.env;
const client = new OpenAI({ baseURL: `${BASE_URL}/v1`, maxRetries: 0 });
const runner = client.chat.completions.runTools({
  model: MODEL,
  stream: true,
  messages: [{ role: "user", content: QUESTION }],
  tools: [
    {
      type: "function",
      function: {
        name: "lookup",
        description: "Looks a word up.",
        parameters: { type: "object", properties: { kind: { type: "string" } }, required: ["kind"] },
        parse: JSON.parse,
        function: () => WORD,
      },
    },
  ],
});
console.log(await runner.finalContent());
