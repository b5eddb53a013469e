"""The worker side of HTTP/1.1: connections, their pool, responses, usage, errors.

Knows one worker's address and nothing of the choice among workers, which is `dispatch/`.
"""
