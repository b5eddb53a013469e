"""KV events on their way from engines into the index.

`decode` reads the bytes of one batch; `stream` orders the batches of one engine, notices gaps and
restarts, and requests replays; `source` tells engines at one address apart, applies their batches
to the index, and knows how far behind it is. These are pure. Only `subscriber` and `sockets` know
ZeroMQ and the event loop.

What events mean for the index is in `controller/index`.
"""
