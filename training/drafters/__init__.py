"""Drafters for the built-in model: an MTP head and DFlash, trained to draft what it would say.

Owns their networks, examples, training and files. The model itself stays as it is.
"""
