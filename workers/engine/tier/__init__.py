"""The host tier on a device: the region of host memory, and the copies from and to it."""
