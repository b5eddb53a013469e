"""The policies, one file each: which worker a strategy puts first.

To add one, copy `least_load.py`; what a policy may ask for is in `strategies/api.py`. What anything
costs is in `strategies/cost/`, what a worker is believed to hold in `strategies/prefix/`.
"""
