"""Measurements, each one command that prints ratios from one run."""
