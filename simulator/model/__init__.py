"""What a worker's model would know: its tokenizer, its chat template, the words it answers with.

`tokens` is the simulator's own tokenizer and template, `folder` a real model's, read from its
files. `language` is their common interface, `answers` the text that is generated. No weights: the
answer follows from the prompt's checksum.
"""
