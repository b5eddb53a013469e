"""Stores of KV blocks that all workers share: what lies in them, asked before a decision."""
