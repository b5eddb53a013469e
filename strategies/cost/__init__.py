"""The cost in seconds: from what is booked, how fast workers are, and what they hold.

`cost.py` is the sum, with the price for those who come next, `prefill.py` how fast workers compute,
`tiers.py` how fast they load, `load.py` what is booked on one, by `booking.py`, and `preemption.py`
what gives way. What each number means is in `strategies/constants.py`.
"""
