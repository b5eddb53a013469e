"""TODO: what lives in benchmarks/soak, and what does not."""
