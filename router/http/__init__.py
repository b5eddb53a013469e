"""The client side of HTTP/1.1: sockets, parser, checks of heads, access, one exchange.

Knows bytes and bounds, not workers. The other side is `upstream/`.
"""
