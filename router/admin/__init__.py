"""What operators see: health, workers, metrics, explanations, sessions, docs.

`routes.py` has the paths, on FastAPI, off the request path. `views.py` has what they show, of this
process or merged from all. `explain.py` explains where a request would go, `sessions.py` lists and
closes sessions, and `openapi.py` describes every path, those of clients too.

How metrics are counted is in `router/observe/`; who may use these paths is in `router/http/`.
"""
