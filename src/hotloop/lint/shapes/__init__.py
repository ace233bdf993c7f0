"""The bodies and answers of each API, taken apart."""
