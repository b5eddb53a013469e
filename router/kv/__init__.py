"""What workers hold, as their KV events and shared stores tell.

The index itself is in `controller/`; here it is attached to pools.
"""
