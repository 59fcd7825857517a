"""Tool calls in the text of a model, one parser per format."""

from gateway.core.tools.hermes import HermesToolParser

__all__ = ["HermesToolParser"]
