"""`herma bench quality`: the cost of a setting in perplexity and agreement."""
