"""How well requests are routed: strategies, peers and bounds on a virtual clock.

`python -m benchmarks.routing` runs every policy on every column and judges the goals.
`columns` has the workloads (`generated`, `traces`) and the engines that they run on, `drive` runs a
policy on them, `policies` lists the policies: Warmroute's, those of `peers` and `knowing`.
`bounds` has what no router can beat, and replays with one thing made ideal. `goals` judges, and
`results` writes RESULTS.md. `sensitivity` halves and doubles constants; `sockets` compares the
virtual clock with real HTTP workers.
"""
