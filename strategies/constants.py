"""The tuned numbers of waiting: each with its unit and its meaning."""

from typing import Final

# Who waits.

#: A worker with at most this many seconds of prefill booked is sent more, so that it never idles.
READY_S: Final = 0.3
#: So is one with at most this many uncached tokens booked, however long they take. One engine step
#: computes that many (the smallest usual `max_num_batched_tokens` of vLLM). While many requests
#: decode, steps are long, and prompts sent one by one would waste them.
READY_TOKENS: Final = 2_048

# Which goes first.

#: Seconds of prefill that a second of waiting makes up for, so that no long prompt starves.
AGING: Final = 0.3
#: Requests that lack room wait for tokens of the KV cache, not only for prefill, so those that take
#: much of it come later: a prompt that takes all of it as if its prefill took these seconds longer.
AREA_S: Final = 8.0
#: After this many seconds, a request that lacks room in the KV cache goes before all others, and
#: its tokens count as taken. Reserving room at once would mean first come, first served: room stays
#: idle until it suffices for a large prompt, which waits no longer than the small ones it delays.
LACKING_S: Final = 20.0
#: The longest wait in seconds for a worker that is about to be free; then a request goes before all
#: others to any that accepts it. Less than the default of `timeouts.queue`, so that time is left.
LONGEST_S: Final = 27.0

# How much is looked at.

#: Seconds until a waiting request is decided anew, as the fleet changes.
LOOK_S: Final = 0.5
#: The same if it lacks room, because no event tells when room comes free.
FULL_LOOK_S: Final = 0.1
#: How many requests are looked at when a worker may have become free.
LOOKED_AT: Final = 64
#: The costly part is deciding anew, which compares all workers. At most so many comparisons are
#: spent on requests that are due, and as many on those for which another worker is cheapest now.
COMPARED: Final = 512
#: How many of the best workers are remembered from one decision to the next.
REMEMBERED: Final = 16
