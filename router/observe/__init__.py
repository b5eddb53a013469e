"""What Prometheus, the access log and other processes are told.

`metrics.py` holds what is counted as requests pass; the rest reads the fleet when scraped.
"""
