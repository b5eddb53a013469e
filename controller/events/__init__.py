"""TODO: what lives in controller/events, and what does not."""
