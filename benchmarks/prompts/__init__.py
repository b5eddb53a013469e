"""The cost of turning a request's body into block keys: `python -m benchmarks.prompts`.

Measures CPU microseconds of all threads for prompts never seen before, for the next turn of a
conversation, and for repeated prompts. For comparison, a plain implementation with `tokenizers`
processes the same bodies in the same run. Both are warm, as after some minutes: their tokenizers
have seen most words, but not these messages. With `--peer-python`, the hashing of blocks alone is
compared with that of ai_dynamo_runtime, in an environment that has it.

`implementations` has both, `model` the tokenizer, the chat templates and the conversations, which
are made on the spot. What else a request costs is in `benchmarks.steps`.
"""
