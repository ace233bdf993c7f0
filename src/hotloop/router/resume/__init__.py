"""An answer whose replica is lost goes on at another: what was told, how it is asked for, and what is new of it."""
