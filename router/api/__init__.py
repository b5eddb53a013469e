"""What clients speak: the requests of OpenAI's and Anthropic's APIs, their limits, and errors.

Bytes in, plain data out: no sockets, no workers. Reading the head of a request is in `http/`,
making token ids of a body in `rendering/`.
"""
