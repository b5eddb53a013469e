"""HyperPod's InferenceEndpointConfig in place of a settings file."""
