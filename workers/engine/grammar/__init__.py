"""Grammars of one model: compiled beside the steps, then followed token by token."""
