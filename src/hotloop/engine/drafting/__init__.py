"""Guessing tokens ahead: who guesses, and how much of it is worth computing."""
