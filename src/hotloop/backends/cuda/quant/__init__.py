"""Weights in fewer bits: how they are held, and products with them."""
