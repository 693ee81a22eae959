"""Processes as text that outlives them: who was at some work, and whether they have gone."""

from __future__ import annotations

import platform

import psutil

CLOCK_S = 5.0
"""By how much the start of a process may seem to shift when the clock is set."""


def describe(process: psutil.Process | None = None) -> str:
    """Host, number and start of a process; of this one by default."""
    process = process or psutil.Process()
    return f"{platform.node()} {process.pid} {process.create_time():.2f}"


def is_gone(described: str) -> bool:
    """Whether such a process ran on this machine and has ended."""
    host, number, started = (*described.split(" "), "", "")[:3]
    if host != platform.node() or not number.isdecimal():
        return False
    try:
        found = psutil.Process(int(number))
        same = abs(found.create_time() - float(started)) < CLOCK_S
        return not same or found.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
