"""Which tokenizer a model has, where it comes from, and whether workers agree with it.

Tokenizing itself is in `rendering/`.
"""
