"""TODO: what lives in benchmarks/seeds, and what does not."""
