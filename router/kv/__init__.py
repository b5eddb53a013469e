"""What the router knows of workers' KV caches: the controllers and stores of its pools.

`attach.py` gives each pool whose strategy wants it a memory of KV events, and follows its engines;
`snapshots.py` keeps the memory over a restart; `remote.py` asks a controller that runs by itself.
`lmcache/` asks shared L2 stores that tell no events. `answers.py` keeps what was asked until the
decision. `status.py` and `metrics.py` show all of it.

Not here: decoding events and the index itself (`controller/`), and how much a block saves
(`strategies/cost/`).
"""
