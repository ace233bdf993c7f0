"""A deployment over HTTP: the one place of the doctor that knows the wire."""
