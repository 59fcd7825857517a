"""What both sides of the wire share: messages, frames, hashes, errors."""
