// A loop of two turns by Vercel's ai, streamed.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { BASE_URL, MODEL, QUESTION, WORD } = process.env;
const provider = createOpenAICompatible({ name: "hotloop", baseURL: `${BASE_URL}/v1` });
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
