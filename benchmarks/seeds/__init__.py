"""HyperPod's published routing results on a simulated fleet: `python -m benchmarks.seeds`.

Simulates seven replicas with the constants of Llama-3.1-70B on eight H100, and the published
workloads as far as they are described. Each strategy runs with default settings, without and with
L1 and L2. The baseline is random choice, with prefix caching on every worker. The population of
contexts is calibrated so that the baseline's hit rate is 25 to 30 %, as published; nothing else is
fitted. The clock is virtual and all randomness is seeded, so the same command gives the same
numbers on any machine.

`workloads` has what is published and how requests follow from it, `fleet` the replicas, tiers and
routers, `cells` one run, `tables` what is printed. Other workloads are in `benchmarks.routing`.
"""
