"""Workers, pools and models: who exists, who is up, and who answers well.

Probes, breakers and outlier detection write a worker's state; others only read it.
"""
