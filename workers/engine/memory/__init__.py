"""How much memory there is and what fits into it."""
