"""The flags that say how many workers run and where. Never imports torch."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ipex_assist.commands.shared.native_runs import flags_run_native
from ipex_assist.env.errors import UsageError
from ipex_assist.launch import InstanceRequest, request_from


def check_instances(args: argparse.Namespace) -> None:
    """UsageError where --no-launch goes with what only a placement could do."""
    if args.no_launch and (args.cores_per_instance is not None or isinstance(args.instances, str)):
        raise UsageError("--no-launch places nothing: give --instances as a number, without --cores-per-instance")
    if args.no_launch and args.instances is not None and args.instances < 1:
        raise UsageError(f"--instances {args.instances}: at least 1 is needed.")


def instance_request(args: argparse.Namespace, model_bytes: int | None) -> InstanceRequest:
    """Return the instances that the flags ask for: one per NUMA node, unless something else is said."""
    fields = asdict(request_from(args, model_bytes))
    instances = "per-node" if leaves_division(args) else args.instances
    native = flags_run_native(args)
    fields.update(instances=instances, cores_per_instance=args.cores_per_instance)
    fields.update(first_touch=native, spares_cpu=native)
    return InstanceRequest(**fields)


def leaves_division(args: argparse.Namespace) -> bool:
    """Whether the flags do not say how many instances there are, and of which size."""
    return args.instances is None and args.cores_per_instance is None and args.threads is None
