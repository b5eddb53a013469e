"""The controller: an index of which block is on which worker and tier, built from KV events."""
