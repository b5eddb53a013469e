"""The choice: prompt + workers + now → the order in which to try them. Pure."""
