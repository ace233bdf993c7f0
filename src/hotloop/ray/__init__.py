"""Replicas on Ray Serve (extra `ray`): as many engines as there is work for, placed by the router's own code."""
