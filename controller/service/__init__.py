"""TODO: what lives in controller/service, and what does not."""
