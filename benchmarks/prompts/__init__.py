"""TODO: what lives in benchmarks/prompts, and what does not."""
