"""The speed of the engine, beside the card's floor and a peer."""
