"""Which tokens may come next: compiling grammars, and matching outputs against them."""
