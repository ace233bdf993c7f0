"""What breaks a prefix, and what keeps it whole: measured over HTTP, explained by the server, checked against both."""
