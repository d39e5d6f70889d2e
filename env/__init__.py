"""Describes this machine, and chooses environment variables for it. Never imports torch."""

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.libraries import Libraries, find_libraries
from ipex_assist.env.machine import Core, Machine, Node
from ipex_assist.env.topology import read_topology
from ipex_assist.env.variables import Variables, choose_variables

__all__ = [
    "Core",
    "IpexAssistError",
    "Libraries",
    "Machine",
    "Node",
    "UsageError",
    "Variables",
    "choose_variables",
    "find_libraries",
    "read_topology",
]
