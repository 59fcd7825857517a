"""What gateway and workers share: messages, frames, hashes, errors, and the transport."""
