"""TODO: what lives in simulator/engine, and what does not."""
