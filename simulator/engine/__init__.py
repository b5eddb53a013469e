"""The engine: what vLLM's scheduler does step by step, and how long each step takes.

`core` is the scheduler and `request` what it schedules. `profiles` has the speeds of models on
hardware. These know no clock, no sockets and no asyncio. `clock` lets the time of each step pass
and delivers its tokens. Blocks and tiers are not here but in `simulator.kv`.
"""
