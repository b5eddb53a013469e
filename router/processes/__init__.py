"""Several serving processes on one port, and the parent that keeps them running.

`supervisor.py` is the parent: it starts the processes, watches that they answer, restarts them,
hands them new settings, and adds up their metrics. `child.py` is one serving process. The kernel
spreads connections over them (SO_REUSEPORT).

What one process does as a server is in `router/app.py`, and what they tell each other of
requests in `router/replicas/`, with the channel that parent and process talk over.
"""
