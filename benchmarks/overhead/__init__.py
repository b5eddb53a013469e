"""TODO: what lives in benchmarks/overhead, and what does not."""
