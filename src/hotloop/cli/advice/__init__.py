"""`hotloop lint`, `doctor` and `size`: what to change in prompts, in a deployment and in the hardware."""
