"""What all who speak HTTP share: where they listen, who is let in, what a request is called, and events in a stream."""
