"""The dashboard's overview in a terminal.

Owns the frames of text, the gateway's stream that they show, and the terminal. Must not know how
the gateway makes the overview.
"""

from herma.top.frame import View, draw
from herma.top.source import GatewayPage, TopData, admin_key
from herma.top.terminal import follow
from herma.top.text import STYLES
