"""The gateway: HTTP in front, workers behind, every decision between."""
