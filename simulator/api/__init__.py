"""vLLM's HTTP API as a worker serves it: from a request's body to the answer's.

`app` maps paths to the handlers in `endpoints` (text) and `pooling` (numbers). `models` has the
bodies of requests, `served_model` the model behind them, `generation` the way through the engine,
`formats` the answers, and `metrics` what Prometheus reads. Bytes on a connection are not here but
in `simulator.http`.
"""
