"""The overhead of the router compared with other proxies: `python -m benchmarks.overhead`.

Starts two stub workers that use next to no CPU, starts every installed proxy in front of them, and
sends each proxy the same requests, one proxy after the other, in several rounds. The numbers are
medians over the rounds. They depend on the machine's speed; the ratios do not.

Peers are found on PATH, or given as `--peer NAME=COMMAND`: sglang-router, smg, vllm-router,
litellm, nginx. Each runs with its defaults, with round robin and, if it can, prefix routing.

`cells` measures, `tables` makes the tables and notes. What is inside a request's time is in
`benchmarks.steps`, what many streams cost in `benchmarks.streams`.
"""
