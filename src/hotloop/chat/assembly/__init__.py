"""How a prompt is put together so that it begins as it did before, and knows where its tokens came from."""
