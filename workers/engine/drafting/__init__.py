"""Drafters on the device: networks that propose what may follow, for the step to verify."""
