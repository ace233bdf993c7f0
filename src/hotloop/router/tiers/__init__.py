"""Which model answers: rules, a classifier and a cascade from the smallest that will do, and what that saves."""
