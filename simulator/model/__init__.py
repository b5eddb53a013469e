"""TODO: what lives in simulator/model, and what does not."""
