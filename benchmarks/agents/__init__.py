"""Agents of the shape that operators report, against any server over HTTP."""
