"""Goodput under overload: `python -m benchmarks.overload`.

Starts workers of a known capacity behind the router and sends requests at 0.5, 1, 2 and 4 times
that capacity, at random times that do not depend on earlier answers (open loop). `limits.in_flight`
is what a worker can do at once. `limits.queue` is what can be served in half of the deadline, so
that a request that could not be answered in time is refused at once and can go elsewhere.

Goodput is the rate of answers within the deadline. A router without limits answers everyone too
late, and the higher the load, the fewer answers are in time. Fails (exit code 1) if the goodput at
the highest load is below 90 % of the best. The first fifth of each level is not counted.

`worker` has the workers, `load` the clients and how their results are summarised. Faults of workers
are in `benchmarks.soak`.
"""
