"""Responses of `/v1/responses` that a worker keeps, and which worker that is."""
