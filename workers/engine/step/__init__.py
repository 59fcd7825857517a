"""One step of a model: batch, token and sampling state, the sampler, steps on the CPU."""
