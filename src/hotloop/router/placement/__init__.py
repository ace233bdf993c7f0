"""Who gets a request: what replicas hold, what they have to do, and the policies that weigh the two."""
