"""How fast the kernels are on a GPU, beside the libraries' and beside the card's ceilings."""
