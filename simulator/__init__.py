"""Simulated vLLM workers: a pure engine, and the same engine behind real HTTP and KV events.

`fleet` runs workers, `settings` says what can be set of them, and `worker` is one of them. Below
these, in the order of their imports:

- `api`: the endpoints, the formats of their answers, `/metrics`
- `http`: connections and exchanges, and the faults that can befall them
- `engine`: the scheduler, its speed profiles, and the clock that drives it
- `model`: the tokens and texts of prompts and answers
- `kv`: the cache, the tiers behind it, and the events about both

`traces` reads recorded requests, `workloads` draws new ones. Nothing here imports the router, the
strategies or the controller. The engine that runs whole traces is in `benchmarks/routing`.
"""
