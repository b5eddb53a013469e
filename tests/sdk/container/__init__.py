"""AWS's own container library, as a worker."""
