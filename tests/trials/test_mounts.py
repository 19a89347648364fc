"""Which mounts a trial meets as they are."""

import os

import pytest

from hasten.trials.isolation.mounts import Mount, stays_real, visible_mounts, wake

KINDS = {
    "/": "btrfs", "/run": "tmpfs", "/run/lock": "tmpfs", "/run/netns/a": "nsfs",
    "/run/user/1000": "tmpfs", "/run/user/1000/doc": "fuse.portal",
    "/run/user/1000/gvfs": "fuse.gvfsd-fuse", "/run/media/ada/DISK": "ext4",
    "/run/media/ada/DISK/memory": "tmpfs",
}  # fmt: skip


def table(kinds):
    return {path: Mount(path, kind, False, n) for n, (path, kind) in enumerate(kinds.items())}


def test_visible_mounts_know_the_root() -> None:
    assert "/" in visible_mounts()
    assert visible_mounts()["/proc"].kind == "proc"


@pytest.mark.parametrize(
    "path",
    ["/run", "/run/lock", "/run/netns/a", "/run/user/1000", "/run/user/1000/bus", "/proc/1",
     "/run/user/1000/doc", "/sys", "/dev/shm"],
)  # fmt: skip
def test_where_programs_find_one_another_stays_real(path) -> None:
    assert stays_real(path, table(KINDS))


@pytest.mark.parametrize(
    "path",
    ["/run/media/ada/DISK", "/run/media/ada/DISK/project", "/run/media/ada/DISK/memory",
     "/run/user/1000/gvfs", "/home/ada", "/runs", "/mnt"],
)  # fmt: skip
def test_disks_and_shares_in_run_are_covered_as_elsewhere(path) -> None:
    assert not stays_real(path, table(KINDS))


def test_the_run_of_a_container_is_no_disk_though_it_lies_on_one() -> None:
    assert stays_real("/run/x", table({"/": "overlay"}))
    assert stays_real("/run/x", table({"/": "overlay", "/run": "ext4"}))


def test_disks_that_are_mounted_when_they_are_asked_for_are_asked_for(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(os, "stat", asked.append)
    wake("/home/ada/project", ["train.py", "--data=/net/data", "sets/small"])
    # By way of them: a status of the path itself leaves autofs asleep (path_resolution(7)).
    assert "/net/data/." in asked
    assert "/home/ada/project/sets/small/." in asked
