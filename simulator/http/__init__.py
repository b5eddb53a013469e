"""HTTP without an API: connections that can be reset, exchanges, and faults on demand.

`listener` is uvicorn's protocol on a socket that closes and reopens. `exchange` is one request and
its answer, whole, streamed or cut off. `faults` says what can go wrong when asked to, `errors` is
the form of vLLM's error answers. Paths and bodies are not here but in `simulator.api`.
"""
