"""Drafting tokens ahead: where drafts come from, and how much of them is worth computing."""
