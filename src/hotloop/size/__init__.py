"""What a load needs and what it will feel like, reckoned from shapes and datasheets: nothing is loaded or run."""
