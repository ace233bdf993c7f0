"""What to do about a finding, for everybody and for each kind of deployment whose switches are known."""

from collections.abc import Mapping

_EVERYBODY: Mapping[str, str] = {
    "prefix cache": "Switch prefix caching on; behind several replicas, send a session to the one that has its prefix.",
    "cached tokens told": "Have cached tokens told in usage, or nobody can see whether the cache is hit.",
    "streaming": "Switch off response buffering and compression of event streams in every proxy on the way.",
    "connections": "Let connections live: no `Connection: close`, and an idle timeout longer than tools take.",
    "batching": "Let several requests run at a time.",
    "strict tools": "Have tool calls held to their schema by a grammar, or check each one and ask again.",
    "stable turns": "Use a chat template that only ever adds to the prompt, and send history back unchanged.",
    "disconnects": "Have a request ended when its client goes away, by every proxy on the way too.",
    "exposure": "Ask for an API key, or listen on loopback only, behind something that does.",
}
_BY_KIND: Mapping[tuple[str, str], str] = {
    ("prefix cache", "hotloop"): "Leave `--no-prefix-cache` out; give the cache more room with `--kv-memory`.",
    ("prefix cache", "vllm"): "Leave `--no-enable-prefix-caching` out.",
    ("prefix cache", "sglang"): "Leave `--disable-radix-cache` out.",
    ("prefix cache", "openai"): "Prompts below 1,024 tokens are not cached; set `prompt_cache_key`.",
    ("cached tokens told", "vllm"): "Start it with `--enable-prompt-tokens-details`.",
    ("cached tokens told", "sglang"): "Start it with `--enable-cache-report`.",
    ("batching", "hotloop"): "Raise `--max-running`.",
    ("batching", "vllm"): "Raise `--max-num-seqs`.",
    ("batching", "sglang"): "Raise `--max-running-requests`.",
    ("batching", "llama_cpp"): "Raise `--parallel`.",
    ("batching", "ollama"): "Set `OLLAMA_NUM_PARALLEL`.",
    ("connections", "vllm"): "Raise `VLLM_HTTP_TIMEOUT_KEEP_ALIVE` above what tools take.",
    ("strict tools", "hotloop"): "Leave `--no-strict-tools` out.",
    ("exposure", "hotloop"): "Set `--api-key`, or `--host 127.0.0.1`.",
    ("exposure", "vllm"): "Set `--api-key`, or `--host 127.0.0.1`; the key guards /v1 alone.",
    ("exposure", "sglang"): "Set `--api-key`, or `--host 127.0.0.1`.",
}


def advise(check: str, kind: str) -> str:
    return _BY_KIND.get((check, kind)) or _EVERYBODY[check]
