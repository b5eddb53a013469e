"""A fleet of simulated vLLM workers: a pure engine, and the same engine behind real HTTP."""
