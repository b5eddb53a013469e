"""TODO: what lives in simulator/api, and what does not."""
