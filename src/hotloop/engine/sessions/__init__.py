"""Which sessions are admitted, and which requests belong to one."""
