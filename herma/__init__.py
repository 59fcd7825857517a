"""The commands; each imports the rest only when it runs."""
