"""TODO: what lives in benchmarks/overload, and what does not."""
