"""What is not sent yet, or is taken back: the rules outside the cost.

`queue.py` holds requests until a worker is about to be free, the shortest first; `stuck.py` takes
back what waits at a worker that hangs.
"""
