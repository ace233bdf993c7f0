"""Connections to replicas: what is sent, what comes back, and how either can fail."""
