"""Versions of Herma and of foreign engines on this host, beside one another.

Owns the folder of an installation, its links and records, and the value of `{version}` in a
worker's launch. Must not install, start or judge anything.
"""

from workers.versions.installation import HERMA, Installation, InstalledVersion, installation_of
from workers.versions.resolve import BASE, PLACEHOLDER, launch_problems, launch_version, resolved
