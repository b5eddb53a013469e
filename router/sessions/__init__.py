"""Sessions: which id is bound to which worker, for how long, and where that is stored.

`sessions.py` has the rules, `store.py` the interface of what keeps them.
"""
