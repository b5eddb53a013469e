"""Which worker has which response of `/v1/responses`.

Engines keep responses in the memory of the process that made them, so only that worker can go on
from one. `ids.py` finds their ids in paths, requests and answers; `owners.py` remembers whose each
is, bounded in number and time, and asks other processes and routers; `messages.py` is what these
tell each other.

Not here: relaying the paths of single responses (`proxy/responses.py`).
"""
