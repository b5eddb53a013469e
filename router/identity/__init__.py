"""From a request to exactly the tokens that its engine will see.

    body → conversation → chat template → text → token ids → chained keys

Everything here is pure, except for reading model folders and asking workers. What cannot be known
exactly is not guessed: it raises `Unlike`, and the prompt is keyed by its text instead.
"""
