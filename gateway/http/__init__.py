"""The HTTP edge; the only importer of starlette and of the HTTP server."""
