"""A fleet on paper, played recorded traffic."""
