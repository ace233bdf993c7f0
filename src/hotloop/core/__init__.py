"""The nouns of the project. Standard library only: nothing here knows a tensor or a socket."""
