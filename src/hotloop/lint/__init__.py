"""What clients do that makes models read, wait or cost for nothing: rules over requests, findings, and their price."""
