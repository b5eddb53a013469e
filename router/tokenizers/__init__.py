"""Which tokenizer a model has, where it comes from, and whether workers agree with it.

`registry` follows the fleet. `sources` says where to look, by the settings and by what workers
report; `hub` fetches, `loader` opens and shares, `trial` tries in another process what is unknown.
`verify` compares a worker's tokens with ours for the texts in `probes`; `worker_tokenizer` asks the
worker. `state` decides, without a clock or a socket, whether prompts are keyed by tokens. `status`
is what operators see.

Not here: how tokens are made of a request (`rendering/`), and when (`prompt/executor`).
"""
