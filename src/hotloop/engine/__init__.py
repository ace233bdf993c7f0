"""The engine: blocks, the prefix tree, the scheduler, the sampler and the loop that runs them."""
