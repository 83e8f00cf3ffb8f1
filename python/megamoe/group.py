"""Which ranks take part: none but this one, a torch.distributed group, or a group of this package."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Any

from ._core import Group
from .errors import invalid_type, invalid_value
from .tensors import torch_if_loaded

__all__ = ["Group", "Membership", "resolve"]


@dataclass(frozen=True)
class Membership:
    """A rank's handle and the name of its group."""

    handle: Group
    name: str


def _host_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


def _from_torch(group: Any, dist: Any) -> Membership:
    """Agrees on a key that no other buffer has, by a collective of the torch group."""
    size = dist.get_world_size(group)
    name = str(getattr(group, "group_name", "torch"))
    if size == 1:
        return Membership(Group.self(), name)
    announced: list[Any] = [None] * size
    dist.all_gather_object(announced, (uuid.uuid4().hex, _host_id()), group=group)
    hosts = {host for _, host in announced}
    if len(hosts) > 1:
        invalid_value(f"group = ranks on {len(hosts)} hosts: expected all {size} ranks on one host")
    return Membership(Group.shm(announced[0][0], dist.get_rank(group), size), name)


def resolve(group: Any) -> Membership:
    """The membership that `group` stands for. Collective over a torch group."""
    if group is None:
        return Membership(Group.self(), "self")
    if isinstance(group, Group):
        return Membership(group, group.transport)
    torch = torch_if_loaded()
    if torch is not None and torch.distributed.is_available():
        dist = torch.distributed
        if isinstance(group, dist.ProcessGroup):
            return _from_torch(group, dist)
    invalid_type(
        f"group = {type(group).__name__}: expected None, a megamoe.Group or a torch.distributed.ProcessGroup"
    )
