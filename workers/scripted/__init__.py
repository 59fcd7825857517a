"""An engine without a model, for tests of clients: it says what a file tells it to."""
