"""TODO: what lives in controller/index, and what does not."""
