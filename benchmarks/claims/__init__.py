"""Published claims, each beside its measurement: one module a group of claims, one page from what was kept."""
