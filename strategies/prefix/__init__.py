"""What workers are believed to hold: a prefix tree with one eviction order for each worker.

`block_keys.py` names blocks, `tree.py` says what was sent where and looks a prompt up, `lru.py`
what goes first, and `dump.py` writes the tree.
"""
