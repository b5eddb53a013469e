"""What workers are believed to hold: a prefix tree with one eviction order for each worker.

`block_keys.py` names blocks; `tree.py` is the tree of what was sent where, made of `node.py`;
`lru.py` is one worker's order of eviction; `match.py` looks a prompt up; `dump.py` writes the tree
for the next process; `under_way.py` is what runs, or has just ended.
"""
