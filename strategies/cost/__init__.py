"""The cost in seconds: from what is booked, how fast workers are, and what they hold.

`cost.py` is the sum. `demand.py` prices prefill for those who come next; `prefill.py` learns how
fast workers compute, `tiers.py` how fast they load; `load.py` is what is booked on one worker, by
`booking.py`; `preemption.py` says what gives way to a prompt; `ranking.py` sorts. What each number
means is in `strategies/constants.py`.
"""
