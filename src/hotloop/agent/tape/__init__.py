"""Runs on tape: what the model answered and the tools gave, so that the same run can be had again without either."""
