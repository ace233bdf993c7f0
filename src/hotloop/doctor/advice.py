"""What to do about a finding, for everybody and for each kind of deployment whose switches are known.

Looked up by the trouble, which is the check's own name unless a check has several.
"""

from collections.abc import Mapping

NO_ANSWER = "no answer"
SCATTERED = "scattered"
CLOSED_IDLE = "closed idle"
REFUSED_AT_ONCE = "refused at once"
NO_CALLS = "no calls"
LOOSE_FREE_CALLS = "loose free calls"
UNENCRYPTED = "unencrypted"

_EVERYBODY: Mapping[str, str] = {
    NO_ANSWER: "See its log, and whether it supports what was sent; give a slow one more time with `--timeout`.",
    "prefix cache": "Switch prefix caching on, or give it more room.",
    SCATTERED: "Send a session to the replica that has its prefix, such as with `hotloop route`.",
    "cached tokens in usage": "Report cached tokens in usage, or nobody can see whether the cache is hit.",
    "streaming": "Switch off response buffering and compression of event streams in every proxy on the way.",
    "connections": "Keep connections alive: no `Connection: close`, in any proxy on the way.",
    CLOSED_IDLE: "Raise the idle timeout above what tools take, in every proxy on the way too.",
    "batching": "Run several requests at a time.",
    REFUSED_AT_ONCE: "Raise the limit of concurrent requests, or have agents take turns.",
    "strict tools": "Constrain tool calls to their schema by a grammar, or validate each one and retry.",
    NO_CALLS: "Enable tool calls, with `tool_choice` and without: agents leave the choice to the model.",
    LOOSE_FREE_CALLS: "Validate each call that was not required by `tool_choice`, and retry if it is invalid.",
    "stable turns": "Use a chat template that only ever adds to the prompt, and send history back unchanged.",
    "disconnects": "Cancel a request when its client disconnects, in every proxy on the way too.",
    "exposure": "Require an API key, or listen on loopback only, behind something that does.",
    UNENCRYPTED: "Put TLS in front of it, or listen on loopback only: a key sent in plain text can be intercepted.",
}
_BY_KIND: Mapping[tuple[str, str], str] = {
    ("prefix cache", "hotloop"): "Do not disable `prefix_cache`; give the cache more room with `--kv-memory`.",
    ("prefix cache", "vllm"): "Leave `--no-enable-prefix-caching` out.",
    ("prefix cache", "sglang"): "Leave `--disable-radix-cache` out.",
    ("prefix cache", "tgi"): "Set `PREFIX_CACHING=1`, with `ATTENTION=flashinfer` or `flashdecoding`.",
    ("prefix cache", "llama_cpp"): "Send `cache_prompt: true`, and give sessions slots enough with `--parallel`.",
    ("prefix cache", "openai"): "Prompts below 1,024 tokens are not cached; set `prompt_cache_key`.",
    ("prefix cache", "anthropic"): "Mark what stays the same with `cache_control`; short prompts are not cached.",
    ("prefix cache", "litellm"): "Switch it on in the server behind the gateway, and route a session to one of them.",
    (SCATTERED, "hotloop_router"): "Start it with `--policy prefix`.",
    (SCATTERED, "openai"): "Set `prompt_cache_key`, so that a session comes to where its prefix is.",
    ("cached tokens in usage", "vllm"): "Start it with `--enable-prompt-tokens-details`.",
    ("cached tokens in usage", "sglang"): "Start it with `--enable-cache-report`.",
    ("cached tokens in usage", "tgi"): "TGI does not report them: go by the time to the first token.",
    ("batching", "hotloop"): "Raise `--max-running`.",
    ("batching", "vllm"): "Raise `--max-num-seqs`.",
    ("batching", "sglang"): "Raise `--max-running-requests`.",
    ("batching", "tgi"): "Raise `--max-batch-total-tokens`, and `--max-batch-size` if it is set.",
    ("batching", "llama_cpp"): "Raise `--parallel`.",
    ("batching", "ollama"): "Set `OLLAMA_NUM_PARALLEL`.",
    (REFUSED_AT_ONCE, "hotloop"): "Raise `--max-running` and `--max-waiting`.",
    (REFUSED_AT_ONCE, "sglang"): "Raise `--max-queued-requests`.",
    (REFUSED_AT_ONCE, "tgi"): "Raise `--max-concurrent-requests`.",
    (CLOSED_IDLE, "vllm"): "Set `VLLM_HTTP_TIMEOUT_KEEP_ALIVE` above what tools take.",
    (CLOSED_IDLE, "sglang"): "Set `SGLANG_TIMEOUT_KEEP_ALIVE` above what tools take.",
    (CLOSED_IDLE, "litellm"): "Start it with `--keepalive_timeout` above what tools take.",
    ("strict tools", "tgi"): "Leave `--disable-grammar-support` out.",
    (NO_CALLS, "vllm"): "Start it with `--enable-auto-tool-choice` and the model's `--tool-call-parser`.",
    (NO_CALLS, "sglang"): "Start it with the model's `--tool-call-parser`.",
    (NO_CALLS, "llama_cpp"): "Start it with `--jinja`.",
    ("exposure", "hotloop"): "Set `--api-key`, or `--host 127.0.0.1`.",
    ("exposure", "hotloop_router"): "Set `--api-key`, or `--host 127.0.0.1`.",
    ("exposure", "vllm"): "Set `--api-key`, or `--host 127.0.0.1`; the key guards /v1 alone.",
    ("exposure", "sglang"): "Set `--api-key`, or `--host 127.0.0.1`.",
    ("exposure", "tgi"): "Set `--api-key`, or `--hostname 127.0.0.1`.",
    ("exposure", "llama_cpp"): "Set `--api-key`, or `--host 127.0.0.1`.",
    ("exposure", "ollama"): "Set `OLLAMA_HOST=127.0.0.1`; it has no API keys.",
    ("exposure", "litellm"): "Set a `master_key`.",
}


def advise(trouble: str, kind: str) -> str:
    return _BY_KIND.get((trouble, kind)) or _EVERYBODY[trouble]
