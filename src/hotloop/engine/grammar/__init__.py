"""Which tokens may come next: compiling grammars, and walking through them."""
