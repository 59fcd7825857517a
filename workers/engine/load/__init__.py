"""Model files into tensors: checkpoints, quantisation, the hub, file streams."""
