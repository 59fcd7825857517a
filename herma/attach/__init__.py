"""A configuration for servers that run already: what answers at an address, and the file for it.

Owns the recognition of engines by what they answer for nothing (no request generates a token), the
search for their tokenizer, and the text of the file. Must not start anything.
"""
