"""HyperPod's InferenceEndpointConfig in place of a settings file.

`loader.py` reads the file that a command is given, whichever of the two it is. `fields.py` finds
the manifest in it and notes what becomes of each field. `manifest.py` translates all of it, with
`environment.py` (the workers' variables and arguments), `routing.py` (strategy and sessions),
`lmcache.py` (chunks in Redis) and `annotation.py` (settings that have no field there).

The result is settings like those of a YAML file, validated by `router/settings/`. Nothing here asks
Kubernetes or AWS for anything.
"""
