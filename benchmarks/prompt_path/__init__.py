"""What a request costs the gateway from its bytes to the frame that a worker gets."""
