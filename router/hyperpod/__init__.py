"""Reads HyperPod's InferenceEndpointConfig instead of a settings file."""
