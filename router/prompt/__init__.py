"""From a request to a prompt: its length in tokens and its chained block keys.

`prompts` keys a prompt by its token ids where these are known, else by its text, whose bytes
`canonical` makes equal for equal conversations. `executor` makes long prompts in threads, within
bounds. `salts` separates the prompts of API keys, `forward` writes ids into a request that is sent.
What msgspec decodes is in `models`, as it may not be compiled.

Not here: token ids (`rendering/`), what is done with keys (`strategies/prefix/`), and the fields of
a request (`api/`).
"""
