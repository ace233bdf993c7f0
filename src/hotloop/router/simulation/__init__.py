"""Recorded traffic against simulated replicas."""
