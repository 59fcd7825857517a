"""Providers over HTTP; the only importer of httpx."""
