"""What one client can cost others: `python -m benchmarks.neighbours`.

A small chat request is sent every ten milliseconds, first alone, then beside a neighbour that sends
one of the most expensive requests that the limits allow, on several connections, each as soon as it
has an answer. Prints how much longer the small request takes, and the router's memory before, at
its highest, and a while after the last neighbour.

The workers are stubs that answer at once. Everything runs on this machine, including the workers
and both clients.

`requests` has the neighbour's requests, `clients` sends them. Long prompts of many clients are in
`benchmarks.lag`.
"""
