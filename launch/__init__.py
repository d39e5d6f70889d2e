"""Starts processes on chosen cores and memory: placement, numactl, and a check after the start. Never imports torch."""

from ipex_assist.launch.check import check_start, keep_to_spare_cpu, restore_affinity
from ipex_assist.launch.command import LaunchCommand, format_command
from ipex_assist.launch.flags import add_placement_arguments, request_from
from ipex_assist.launch.instances import InstanceRequest, place_instances
from ipex_assist.launch.parent import run_below
from ipex_assist.launch.placement import Placement, PlacementRequest, place
from ipex_assist.launch.plan import LaunchPlan, inherited_plan
from ipex_assist.launch.process import prepare, run

__all__ = [
    "InstanceRequest",
    "LaunchCommand",
    "LaunchPlan",
    "Placement",
    "PlacementRequest",
    "add_placement_arguments",
    "check_start",
    "format_command",
    "inherited_plan",
    "keep_to_spare_cpu",
    "place",
    "place_instances",
    "prepare",
    "request_from",
    "restore_affinity",
    "run",
    "run_below",
]
