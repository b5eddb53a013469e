"""What operators see: health, workers, metrics, explanations, sessions, docs.

Off the request path, on FastAPI.
"""
