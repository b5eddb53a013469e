"""What operators can measure: the recorder of requests, and how its series become text.

`metrics.py` counts requests, and is the registry to which the composition root adds what the parts
of the router show of themselves, with series cheap enough for the request path; `process.py` shows
this process; `merge.py` makes one report of several processes'; `models.py` is the base of what
operators' paths return.

Not here: gauges of workers, queues, sessions and caches. They live beside what they show, as
`metrics.py` of that package.
"""
