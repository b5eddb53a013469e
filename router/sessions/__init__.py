"""Sessions: which id is bound to which worker, for how long, and where that is stored."""
