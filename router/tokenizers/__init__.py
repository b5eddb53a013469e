"""Which tokenizer a model has, where it comes from, and whether workers agree with it.

`registry` follows the fleet. `sources` says where to look, by the settings and by what workers
report, and searches; `loader` opens and shares, and tries in another process what is unknown.
`verify` compares a worker's tokens with ours; `worker_tokenizer` asks the worker. `state` decides,
without a clock or a socket, whether prompts are keyed by tokens. `status` is what operators see.

Not here: how tokens are made of a request, and of which requests they are compared (`rendering/`);
when they are made (`prompt/executor`).
"""
