"""The decision on a request: who can take it, who is best, and when it waits or gives way.

Knows no HTTP. The choice itself is in `strategies/`; sending is in `proxy/`.
"""
