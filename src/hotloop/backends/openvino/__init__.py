"""The CPU backend: a transformer as an OpenVINO graph, its attention paged, driven as one ragged batch."""
