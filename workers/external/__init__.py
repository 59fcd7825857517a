"""Engines of other projects: what their prefix caches hold, as our block events. Pure."""
