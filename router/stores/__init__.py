"""Stores of KV blocks shared by all workers, which are asked for a prompt before its decision."""
