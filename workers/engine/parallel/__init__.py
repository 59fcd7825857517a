"""One network on several cards of a host: every rank computes a share of each product."""
