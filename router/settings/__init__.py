"""The settings: one model for each section of the YAML file, with the one default of each field.

`model.py` has the whole file, and `server.py`, `fleet.py`, `sessions.py` and `tokenizer.py` have
its sections. `types.py` has types of fields, and `checks.py` the contradictions between sections.
`loader.py` reads a file or a command's arguments through `yaml.py`, and reports all mistakes at
once, in the words of `errors.py`. `files.py` looks at the files that settings name, and notices
when they change. `schema.py` describes the settings, for editors and for operators.

Consumers take these models as they are. What a reload does is in `router/reload.py`, and how a
HyperPod manifest becomes settings in `router/hyperpod/`.
"""
