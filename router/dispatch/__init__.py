"""The decision on a request: who can take it, who is best, and when it waits or gives way.

`Dispatcher.acquire` is the only place where a worker is chosen. It returns a `Lease`: the request
booked on that worker, until what came of it is known. Whether a request that failed may go
elsewhere is decided in `retry.py`, by one function and one budget. `scheduler.py` is the only place
where a request waits; `preemption.py` takes requests back from workers that are stuck or wanted by
a shorter one; `eligibility.py` knows which workers of a pool cannot answer a request.

Not here: the cost of a worker (`strategies/`), whether a worker is up (`fleet/`), and anything of
HTTP: `proxy/` sends what is leased.
"""
