"""The vocabulary: what spans and their attributes are called. No other module spells a name out.

agent    run ─ turn ┬ chat ──────────┐        tool          speculative
router              │                └ route ─ attempt
server              │                          └ request ┬ queue ┬ prefill ┬ decode
                    └ (what is only prefilled ahead is a chat, too: `IS_PREFILL_ONLY`)
"""

from typing import Final

RUN: Final = "run"  # one run of an agent
TURN: Final = "turn"  # from asking the model to the results of its calls being there
CHAT: Final = "chat"  # one question to a model, as the client saw it
TOOL: Final = "tool"  # a call, from when its arguments were whole (or it was begun, speculative) to its result
SPECULATIVE: Final = "speculative"  # a tool that was begun before the model asked for it
ROUTE: Final = "route"  # a request on its way through the router
ATTEMPT: Final = "attempt"  # one try of one replica
REQUEST: Final = "request"  # a request of the engine's, in three parts that follow one another
QUEUE: Final = "queue"  # from arriving to being scheduled first
PREFILL: Final = "prefill"  # from there to the first token
DECODE: Final = "decode"  # from the first token to the last

# Of a run.
AGENT: Final = "agent"  # the agent's name, if it has one
RUN_ID: Final = "run_id"
END: Final = "end"  # done, limit, failed, waiting, paused or cancelled
NUM_TURNS: Final = "num_turns"
NUM_CALLS: Final = "num_calls"
MONEY: Final = "money"

TAGS: Final = "tags"  # of a trace's first span: what it was tagged with where it was recorded

# Of a turn, counted from 1, and everything in it.
INDEX: Final = "turn"

PASSED_OVER: Final = "passed_over"  # models that could not answer: a list of {model, kind}

# Of a question, as the wire told.
MODEL: Final = "model"
ANSWER_ID: Final = "answer_id"
FIRST_TOKEN_NS: Final = "first_token_ns"  # a moment, in unix time, as all `_NS`
NUM_PROMPT: Final = "num_prompt"
NUM_CACHED: Final = "num_cached"
NUM_OUTPUT: Final = "num_output"

# Of a tool.
TOOL_NAME: Final = "tool"
CALL_ID: Final = "call_id"
DISPATCHED_NS: Final = "dispatched_ns"  # when the model's arguments were whole
WAS_SPECULATIVE: Final = "was_speculative"
REUSED: Final = "reused"  # "cached" or "joined": the result is that of the same call
SAVED_S: Final = "saved_s"  # what the tool would have taken
NUM_TRIES: Final = "num_tries"
TRACEBACK: Final = "traceback"  # of a tool that crashed; what its error said is in the result
NUM_CHARS_CUT: Final = "num_chars_cut"  # left out of a result that is too long for the model's window
IS_ERROR: Final = "is_error"
CONFIDENCE: Final = "confidence"
WAS_USED: Final = "was_used"  # of what was speculative: whether the model asked for it

# Of a route.
REPLICA: Final = "replica"
REASON: Final = "reason"  # why this replica
NUM_MATCHED: Final = "num_matched"  # tokens of the prompt the replica was believed to have
TRIED: Final = "tried"  # the replicas that were asked, in order
STABILISED: Final = "stabilised"  # what was changed in its prompt so that it begins as the one before it did: a list
NUM_SAVED: Final = "num_saved"  # tokens of the prompt that would not have been found otherwise, by estimate
MONEY_SAVED: Final = "money_saved"  # what these would have cost beyond what they did
QUEUE_NS: Final = "queue_ns"  # how long it waited for its turn; a duration
FIRST_BYTE_NS: Final = "first_byte_ns"
STATUS: Final = "status"  # the status of the HTTP answer

# Of a request.
REQUEST_ID: Final = "request_id"
ENDPOINT: Final = "endpoint"
PRIORITY: Final = "priority"
FINISH_REASON: Final = "finish_reason"
NUM_NEW: Final = "num_new"
NUM_RECOMPUTED: Final = "num_recomputed"
CAUSES: Final = "causes"  # why tokens were recomputed: a list of {reason, num_tokens, token_index?, kind?, index?}
NUM_SAMPLED: Final = "num_sampled"  # as drafted or not; with `NUM_FORCED` they make the output
NUM_FORCED: Final = "num_forced"
NUM_DRAFTED: Final = "num_drafted"
NUM_ACCEPTED: Final = "num_accepted"
NUM_STEPS: Final = "num_steps"
NUM_RESTORED: Final = "num_restored"
NUM_FROM_HOST: Final = "num_from_host"
NUM_PREEMPTIONS: Final = "num_preemptions"
WAITS: Final = "waits"  # what was waited for before anything was read: a list of {reason, wait_s}
IS_PREFILL_ONLY: Final = "is_prefill_only"  # the prompt is only prefilled ahead; its one output token is discarded

# What was said: recorded only where it is asked for, and redacted.
CONTENT: Final = "content."
CONTENT_REQUEST: Final = "content.request"  # the body of a request, as JSON text
CONTENT_ANSWER: Final = "content.answer"
CONTENT_PROMPT: Final = "content.prompt"  # of a run: what it was asked
CONTENT_ARGUMENTS: Final = "content.arguments"
CONTENT_RESULT: Final = "content.result"
CONTENT_WORDS: Final = "content.words"  # for each of `CAUSES`: {before, previous, current} where prompts part, or null
