"""Routing policies on request traces in virtual time, with the gateway's own dispatcher."""
