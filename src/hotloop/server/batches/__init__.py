"""OpenAI's files and batches, kept in a folder (`batch_dir`), so that a batch goes on after a restart."""
