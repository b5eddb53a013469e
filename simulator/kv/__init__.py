"""TODO: what lives in simulator/kv, and what does not."""
