"""Sleep of an engine of our own: its device's memory is given back, its addresses stay."""
