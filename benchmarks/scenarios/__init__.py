"""TODO: what lives in benchmarks/scenarios, and what does not."""
