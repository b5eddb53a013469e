"""Who holds which blocks, in a bounded amount of memory. Pure: no sockets, no loop, no clock.

`block_events` is what the index is told, and `index` where it is told; `tree` finds a prompt's
blocks by their chained keys, `holdings` knows who has them, and `hash_table` which block an engine
means by a hash of its own. Blocks whose parents are unknown wait in `orphans`. `snapshot` turns all
of it into bytes and back, and `agreement` tells whether engines hash alike.

How events are decoded and ordered is in `controller/events`.
"""
