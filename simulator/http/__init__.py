"""TODO: what lives in simulator/http, and what does not."""
