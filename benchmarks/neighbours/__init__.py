"""TODO: what lives in benchmarks/neighbours, and what does not."""
