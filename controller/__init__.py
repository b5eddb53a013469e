"""The memory: which block is on which worker and tier, built from the engines' KV events.

`events/` hears engines and puts their events in order; `index/` keeps what they say; `kv_memory.py`
answers the `kvaware` strategy from it, and `accuracy.py` compares that with what workers report.
`service/` offers the same over HTTP, for several routers. Which workers there are, and when a
router asks, is the router's business.
"""
