"""Routing policies on request traces, in virtual time, on the gateway's own core."""
