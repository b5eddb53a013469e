"""The cost in seconds: from what is booked, how fast workers are, and what they hold.

`cost.py` is the sum, with the price for those who come next, `prefill.py` how fast workers compute
and load, `load.py` what is booked on one, and `preemption.py` what gives way. What each number
means is in `strategies/constants.py`.
"""
