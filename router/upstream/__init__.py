"""The worker side of HTTP/1.1: the connections to one worker, and what its answers say.

`pool` keeps the connections, and the addresses they lead to. `connection` sends one request at a
time and passes the answer on as it arrives; `response` parses it. `usage` reads the token counts of
an answer, `faults` what its status does not say. `errors` are what can go wrong, and what the
client gets for it.

Nothing here knows of more than one worker. The choice among them is in `dispatch/`, what is tried
elsewhere after an error too.
"""
