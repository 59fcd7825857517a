"""The commands of `herma`, one file each, named after the command.

Each has a `run`, which `herma.cli` imports only to run that command. Owns no options: those are in
`herma.cli` and beside what they configure.
"""
