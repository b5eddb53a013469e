"""KV blocks: which are cached where, and the events that say so.

`blocks` has their digests and changes, `cache` those on the GPU, `tiers` host memory and a shared
store behind it, `stores` the two kinds of store. `events` publishes the changes over ZeroMQ. When
requests take and release blocks is not decided here but in `simulator.engine`.
"""
