"""The memory: which block is on which worker, on which tier."""
