"""What a load needs and the latency it will see, reckoned from shapes and datasheets: nothing is loaded or run."""
