"""Shared stores of LMCache (L2), asked for a prompt before its decision.

`shared_store.py` asks within a deadline and has the interface of a lookup; names of chunks are
computed, their content is never read.
"""
