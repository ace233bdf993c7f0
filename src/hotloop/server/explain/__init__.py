"""Why a prompt, or a part of it, was recomputed."""
