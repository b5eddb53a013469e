"""Every tuned number of the strategies: what a decision would change with.

Where a strategy can observe something (pace, how long requests stay, how much is asked for again),
it does, and what stands here is only how to begin and how fast to learn.
"""

from typing import Final

# Learning (`prefill.py`, `tiers.py`, `load.py`).

#: Weight of one observation in a moving average, once there are more than its inverse.
WEIGHT: Final = 0.05
#: A single answer counts as at most this many times slower or faster than predicted.
MAX_STEP: Final = 4.0

# Pace: how fast workers compute prompts (`prefill.py`).

#: Seconds. Shorter predictions teach nothing: overheads (network, one decode step) dominate.
MIN_TIMED_S: Final = 0.05
#: Workers whose speeds differ by less than this, as a logarithm, count as alike: if one were
#: thought faster by chance, conversations would settle there and stay.
ALIKE: Final = 0.25

# Wait: prefill that is booked on a worker (`load.py`).

#: What is booked may take this many times as long as predicted: believing workers twice too slow
#: costs nothing, believing them twice too fast costs a lot. All other seconds are as predicted.
MARGIN: Final = 1.75
#: Seconds. First bytes at most this far apart come from one engine step: the prompts were computed
#: together, so the time between them is not that of a prefill.
TOGETHER_S: Final = 0.005

# Price: what prefill costs the requests that come next (`cost.py`).

#: Charged for each request that a second of prefill makes wait: more than its own second, as others
#: wait for it in turn. Of those that come while it lasts, about s / (1 - s) wait, where s is the
#: share of workers with prefill to do (the queue length at that load).
PRICE: Final = 5.0
#: The price in an idle fleet: of two equally early answers the one that computes less is taken. As
#: it is more than `MARGIN - 1`, siblings in a burst wait for the first of them.
LEAST_PRICE: Final = 1.0
#: The least rest, 1 - s, that is assumed of any share s in s / (1 - s).
LEAST_REST: Final = 0.1
#: Seconds. Time constant of what is smoothed over time: how busy and how full workers are, and how
#: much is asked for again.
SMOOTHED_S: Final = 45.0
#: Seconds for which the fleet counts as idle before the first request; until `SMOOTHED_S` have
#: passed, the busy share is an average since then. A cold start is the busiest time of all.
IDLE_S: Final = 1.5
#: Weight, in prompts, of the prior that half of each prompt is held: the first ones, which are all
#: cold, would say too much.
BELIEF: Final = 8.0

# Decode: answers that slow each other, and wait for prefill (`cost.py`).

#: Share of the prefill time charged for each request that decodes there, which stalls meanwhile.
CROWD: Final = 0.1
#: Seconds charged for a full KV cache. Each decode step reads the cache once, which takes about
#: 25 ms for a full one on every accelerator (memory over bandwidth: H100 80 GB at 3.35 TB/s, A100
#: 80 at 2.0, L40S 48 at 0.86); times 240 tokens of answer, half of that counted. It does not depend
#: on the length of this request's answer: weighted by that, long ones would leave their prefixes.
DECODE_S: Final = 3.0

# Room: waiting until the KV cache has room (`cost.py`, `load.py`).

#: A request that finds no room waits at least this share of the time that requests stay.
LEAST_WAIT: Final = 0.45
#: Seconds that a request is expected to stay on a worker before any has ended there.
STAY_S: Final = 8.0

# Home: how long later turns will wait where this one goes (`cost.py`).

#: Seconds that a later turn waits on a worker that was busy half of the time.
HOME: Final = 0.75
#: It finds no room with the chance that the KV cache's share in use is above this on average: a
#: cache that is two thirds full on average is completely full now and then.
FULL_FROM: Final = 0.6

# Preemption: a much longer prompt gives way (`preemption.py`).

#: Seconds until a worker has ended the step that it is in when a request is dropped. One that has
#: not at least as much more to go than the one that comes before it does not give way.
STEP_S: Final = 0.6

# A stuck worker is left (`stuck.py`, `load.py`).

#: Seconds by which its oldest prompt is late at least, and `MAX_STEP` times its prefill.
STUCK_S: Final = 10.0
#: Times its prefill, until an answer has shown how fast the pool's workers are: a slow one may take
#: tens of times as long as is guessed.
TIMES_GUESSED: Final = 90.0
#: Seconds for which a worker counts as late once requests were moved from it, unless an answer
#: begins there.
LATE_S: Final = 30.0

# What workers hold, by what was sent there (`tree.py`, `lru.py`, `prefix_aware.py`).

#: One report can remove at most this share of what is believed to be held, as it may be wrong.
MAX_LOST_SHARE: Final = 0.5
#: Tokens. A report of cached tokens that is below the prediction by no more confirms it.
SLACK: Final = 512

# Who waits in the router (`queue.py`).

#: A worker with at most this many seconds of wait, margin included, is sent more: it never idles.
READY_S: Final = 0.3
#: So is one with at most this many uncached tokens booked, however long they take. One engine step
#: computes that many (the smallest usual `max_num_batched_tokens` of vLLM). While many requests
#: decode, steps are long, and prompts sent one by one would waste them.
READY_TOKENS: Final = 2_048

# Which of them goes first (`queue.py`, `preemption.py`).

#: Seconds of prefill that a second of waiting makes up for, so that no long prompt starves.
AGING: Final = 0.05
#: The longest wait in seconds, for room in a KV cache or for a worker that is about to be free.
#: Then a request goes before all others, to any that accepts it. One that came so long ago does not
#: give way any more, as it would wait anew. Less than the default of `timeouts.queue`, so that time
#: is left.
MAX_WAIT_S: Final = 27.0

# How much of them is looked at (`queue.py`).

#: Seconds until a waiting request is decided anew, as the fleet changes.
RERANK_INTERVAL_S: Final = 0.5
#: The same if it lacks room, because no event tells when room comes free.
FULL_RERANK_INTERVAL_S: Final = 0.1
#: How many requests are looked at when a worker may have become free.
MAX_EXAMINED: Final = 64
#: The costly part is deciding anew, which compares all workers. At most so many comparisons are
#: spent on requests that are due, and as many on those for which another worker is cheapest now.
MAX_COMPARISONS: Final = 512
#: How many of the best workers are remembered from one decision to the next.
MAX_REMEMBERED_WORKERS: Final = 16

# Consistent hashing (`chbl.py`).

#: A worker is sent more while it has fewer requests in flight than this many times the mean.
MAX_LOAD_FACTOR: Final = 1.25
