"""Is the native engine right on this device, and how fast: against `transformers`, in place."""
