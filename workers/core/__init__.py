"""Pure decisions of a worker: scheduling, blocks, restarts."""
