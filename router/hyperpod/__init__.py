"""Reads HyperPod's InferenceEndpointConfig instead of a settings file.

It yields settings, and a note on every field.
"""
