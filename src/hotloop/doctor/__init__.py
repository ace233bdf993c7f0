"""Is a deployment fit for agents? Probes measure facts over HTTP, judges turn facts into findings."""
