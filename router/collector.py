"""Python's garbage collector, told what will stay.

A full collection walks everything that is alive, some hundred thousand objects of the settings'
and FastAPI's making, and stops the loop for tens of milliseconds. They live as long as the
process, so they are set aside once it serves; and the young are looked at less often, since
requests leave hardly any cycles.
"""

import gc

#: Containers made until the young are looked at; Python's own 700 is reached by a few requests.
YOUNG = 20_000


def settle() -> None:
    """Set aside what is alive now. Called once, when the process has started to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 50)
