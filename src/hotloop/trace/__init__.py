"""What took time and tokens: spans, where they are kept, and the account drawn from them."""
