"""What every process needs: log lines, signals and limits of the process, threads.

`logs.py` writes log lines, `process.py` has signals, descriptors and memory, `threads.py` runs what
would block the event loop, `quote.py` shows values in messages, and `redis.py` tells what is
wrong with a Redis.

Nothing here knows requests, workers or settings.
"""
