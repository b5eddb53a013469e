"""Responses of `/v1/responses` that a worker keeps, and which worker that is.

Their paths are relayed to that worker alone.
"""
