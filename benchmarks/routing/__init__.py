"""How well requests are routed: strategies, peers and bounds on a virtual clock.

`python -m benchmarks.routing` runs every policy on every column, judges the goals, and writes
RESULTS.md. `workloads` has what is asked, generated or recorded; `columns` the engines that it is
asked of. `drive` runs a policy on them; `policies` lists the policies: Warmroute's, those of
`peers` and `knowing`. `bounds` has what no router can beat, and replays with one thing made ideal.
`results` judges and shows. `sensitivity` halves and doubles constants; `sockets` compares the
virtual clock with real HTTP workers.
"""

from pathlib import Path

#: Where results are written.
PAGE = Path(__file__).parents[1] / "RESULTS.md"
