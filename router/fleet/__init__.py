"""Workers, pools and models: who exists, who is up, and who answers well.

`Worker.availability` says whether a worker takes requests, and why not: by its probes
(`probes.py`), its answers (`breaker.py`, `outliers.py`) and what is booked there. `Pool.eligible`
returns the workers that may answer for a model now; `Fleet` finds the pool of a model. `build.py`
makes a fleet from settings, and changes it on reload. `inquiries.py` asks workers small questions,
off the request path; `abilities.py` notes what they say that they serve. `state.py` saves what
strategies know; `metrics.py` shows all of it.

Not here: the choice among workers (`dispatch/`, `strategies/`) and connections (`upstream/`). A
pool holds its sessions for `sessions/`, and knows nothing of them.
"""
