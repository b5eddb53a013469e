"""What workers are believed to hold: a prefix tree with one eviction order for each worker.

`block_keys.py` names blocks, `tree.py` says what was sent where, by `node.py`, `lru.py` what goes
first, `match.py` looks a prompt up, `dump.py` writes the tree, `in_flight.py` has what runs.
"""
