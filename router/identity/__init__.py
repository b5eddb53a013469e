"""From a request to the very tokens that the engine will see.

    body → conversation → chat template → text → token ids → chained keys

Everything here is pure but for the reading of model folders and the asking of workers. What cannot
be known exactly is not guessed: it raises `Unlike`, and the prompt is keyed by its text instead.
"""
