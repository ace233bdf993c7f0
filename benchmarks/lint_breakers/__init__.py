"""What clients do to waste a prompt, put into recorded runs, and whether the linter finds it where it was put."""
