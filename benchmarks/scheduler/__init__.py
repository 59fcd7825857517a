"""What the scheduler costs per step on the CPU."""
