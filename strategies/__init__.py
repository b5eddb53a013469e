"""Routing strategies: from a prompt, the workers and the time to the order in which to try them.

They are pure: no I/O, no clock of their own.
"""
