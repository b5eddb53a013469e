"""Inference over HTTP: a request is parsed, leased a worker, sent there, and its answer relayed.

`Proxy.serve` is the way of one request from first byte to last. `parse.py` makes the request that
`dispatch/` decides on, within the limits of `limits.py`; `proxy.py` sends a lease to its worker and
tells client and log what was decided; `relay.py` passes the answer on, byte for byte.
`responses.py` relays the paths of single responses to the worker that has them; `dry_run.py`
decides on a request that is not sent.

Not here: which worker, and whether another is asked (`dispatch/`); connections of clients (`http/`)
and to workers (`upstream/`); AWS's shapes (`sagemaker/`).
"""
