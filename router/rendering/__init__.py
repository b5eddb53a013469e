"""From a request's body to the text and the token ids that its engine will compute. Pure.

Which tokenizer a pool may trust is decided in `tokenizers/`; block keys are made in `prompt/`.
"""
