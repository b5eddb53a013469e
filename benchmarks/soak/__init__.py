"""Long mixed load with faults: `python -m benchmarks.soak --minutes 10`.

Starts the router in front of five worker processes, one of which is added to and removed from the
settings by reloads, and sends it what a public endpoint gets: prompts of 0.4 to 261 kB, growing
conversations, streams; clients that disconnect at any point, read slowly or not at all, send
invalid data, nothing or too much, or ask for unknown models. Meanwhile workers are killed, freeze,
refuse connections, stall, break off, and answer 500, 503 and garbage. At least one is always well.

During the first quarter of the time, the load is adjusted until the router uses `--share` of a
core, and then held. That quarter is left out of the memory slopes. It has somewhat more load and
faults than the rest, because a process keeps the memory of its worst moment.

Fails (exit code 1) if memory grows by 1 MB a minute or more; if half a minute after the load there
are more descriptors or tasks than before, or something is still booked; if a request was lost that
could have been saved, or was sent to two workers (`judge` defines both); if an answer was wrong or
never came; if the router's log reports an internal error; if it does not exit cleanly.

`worker` is a worker, `fleet` all of them and their faults, `requests` what clients send and must
get, `clients` how they behave, `run` the course of a soak, `report` what it prints.
"""
