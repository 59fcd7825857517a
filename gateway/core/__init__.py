"""Pure decisions of the gateway: no I/O, no clock, no chance."""
