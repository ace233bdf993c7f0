"""What the server and the router share of HTTP: where they listen, who is let in, what a request is called."""
