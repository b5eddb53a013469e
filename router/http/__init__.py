"""The client side of HTTP/1.1, up to a request that is complete and may be served.

`server` owns listening sockets and shutdown. `connection` is one client: its deadlines, the order
of its answers, back pressure, what a disconnect means. `parser` makes requests of bytes, and
`validation` refuses heads that two parsers could read differently. `access` says who may send what.
`exchange` is one request and its answer, all that the layers above know of a client. `headers` says
which fields pass, in both directions; `content_coding`, `sse`, `tls` and `sockets` do what their
names say; `asgi` serves everything but inference.

Nothing here knows of workers, or of what a body means. That is in `upstream/` and `api/`.
"""
