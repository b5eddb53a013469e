"""Sessions: several requests of one client that belong to one worker.

`Sessions` are those of a pool: its rules, its store, its counts, and what happens while the store
is down. `use.py` is one request's part in one, from the look-up to the binding by compare-and-set;
`ids.py` reads and writes the names that clients give; `table.py` and `store.py` keep sessions in
memory, `redis.py` with `lua.py` in Redis, for several routers. `attach.py` gives pools their
sessions, and keeps them across a reload.

Not here: SageMaker's own calls to open and close a session (`sagemaker/`), and operators' paths
(`admin/`).
"""
