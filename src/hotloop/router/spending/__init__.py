"""What keys may spend, and what they have spent."""
