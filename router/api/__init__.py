"""What clients speak: OpenAI's API, Anthropic's and the others that engines serve. Pure.

`endpoints` is the table of paths. `request` reads of a body what routing needs, `messages` and
`media` the messages in it, `native` bodies in another form than OpenAI's. `lenient_json` reads what
only Python's `json` takes. `errors` has every error that a client can see, `error_shapes` how each
API writes it.

Bytes in, plain data out: no sockets, no workers. Heads of requests are read in `http/`, token ids
are made of bodies in `rendering/`.
"""
