"""An engine without a model, for load tests: made-up tokens at an exact pace."""
