"""One address in front of many replicas: each request goes where its prefix is cached."""
