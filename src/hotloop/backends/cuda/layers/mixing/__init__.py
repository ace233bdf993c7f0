"""What the layers of a decoder do across rows: a class for each kind, all with the same two methods."""
