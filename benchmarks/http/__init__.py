"""`herma bench http`: OpenAI-compatible servers under the same load, in turns."""
