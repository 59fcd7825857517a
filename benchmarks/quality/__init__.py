"""`herma bench quality`: what a setting costs in perplexity and agreement."""
