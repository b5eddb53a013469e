"""Shared stores of LMCache (L2), asked for a prompt before its decision.

`lookup.py` is the interface; names of chunks are computed, their content is never read.
"""
