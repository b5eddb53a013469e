"""From a request's body to the text and the token ids that its engine will compute. Pure.

`tokens` is the way in: `PromptTokenizer.ids(endpoint, body)` gives a prompt's ids, or raises
`NotReproducible` with the reason. `chat`, `anthropic` and `responses` read the three dialects of a
chat, with `messages` for what they share; `template` and `sandbox` run the model's chat template;
`tokenizer` turns text into ids. `renderer` puts these together as most engines do, `mistral` as
they do for Mistral's own format. `folder` says what is read from a model's folder.

Every rule is the engine's, and its place in vLLM or Transformers is cited.

Not here: which tokenizer a pool may trust, and everything that takes time (`tokenizers/`); block
keys, and prompts keyed by their text (`prompt/`); the fields that routing reads (`api/`).
"""
