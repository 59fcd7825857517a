"""Steps on a card: CUDA graphs, their buckets and captures."""
