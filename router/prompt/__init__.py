"""From text or token ids to a prompt: its length and its chained block keys.

Token ids come from `rendering/`; what is done with keys is in `strategies/prefix/`.
"""
