"""Plans: calls written all at once, each run the moment it can be, and an answer made from their results."""
