"""Several serving processes on one port, and the parent that keeps them running.

What they tell each other of requests is in `replicas/`.
"""
