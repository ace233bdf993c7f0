"""Probes: each does something to a deployment and says what happened, as facts. No probe judges."""
