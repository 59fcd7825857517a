"""The speed of the kernels on a GPU, beside libraries and the card's ceilings."""
