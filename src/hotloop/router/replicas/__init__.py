"""The replicas there are: how each is, and who may be asked."""
