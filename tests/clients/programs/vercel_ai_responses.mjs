// A loop of two turns by Vercel's ai and the Responses API, streamed, each turn naming the items of the one before.
import { createOpenAI } from "@ai-sdk/openai";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { BASE_URL, MODEL, QUESTION, WORD } = process.env;
const provider = createOpenAI({ baseURL: `${BASE_URL}/v1` });
const result = streamText({
  model: provider(MODEL),
  prompt: QUESTION,
  maxRetries: 0,
  stopWhen: stepCountIs(3),
  tools: {
    lookup: tool({
      description: "Looks a word up.",
      inputSchema: z.object({ kind: z.string() }),
      execute: async () => WORD,
    }),
  },
});
console.log(await result.text);
