"""The controller as a service of its own: its HTTP API, in FastAPI.

`server` has the paths, `models` what they take and give, and `middleware` the keys, the limits and
the counts. The process around it, with its settings and its log, is the router's command
`warmroute controller`.
"""
