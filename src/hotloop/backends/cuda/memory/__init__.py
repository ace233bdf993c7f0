"""Host memory beside the device memory: KV that was offloaded, and arrays on their way."""
