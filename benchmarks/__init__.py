"""Benchmarks. Each is one command, and the ratios it prints come from a single run."""
