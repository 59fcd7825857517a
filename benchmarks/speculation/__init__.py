"""`herma bench speculation`: what drafts bring at which depth, batch and kind of text."""
