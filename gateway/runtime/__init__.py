"""Waiting, as the gateway's tasks share it, and the memory of the process."""

from gateway.runtime.accounts import Accounts
from gateway.runtime.huge_pages import use_huge_pages
from gateway.runtime.memory import bound_arenas, return_memory
from gateway.runtime.wakeup import Wakeup, break_off
