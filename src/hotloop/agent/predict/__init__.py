"""Learning from past runs which calls come next, and with what arguments. Pure: no clock, no chance, no event loop."""
