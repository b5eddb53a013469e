"""TODO: what lives in benchmarks/harness, and what does not."""
