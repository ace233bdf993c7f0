"""What is done to a conversation so that it begins as the one before it did, whoever reads it."""
