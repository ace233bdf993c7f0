"""The command line: one file a command. The only place that reads argv, the environment and `hotloop.toml`."""
