"""One page about what runs and what ran. It asks its own small API, which asks whoever serves it."""
