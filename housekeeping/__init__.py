"""Housekeeping of processes: how they start, log, report, stop, and what they leave behind.

Owns files that outlive their processes, signals, the audit file, the words for the service manager
and the form of log lines. Must not know messages between processes or what a process serves.
"""
