"""Memory that is freed and needed again in each step, kept instead of given back to the system."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Numbers of glibc's malloc.h (https://man7.org/linux/man-pages/man3/mallopt.3.html)."""


def keep_freed_memory() -> None:
    """Have glibc keep what is freed; elsewhere nothing happens.

    By default blocks of some megabytes, such as a batch's feature maps, come fresh from the system each time, page by
    page: up to a fifth of a training step on a CPU. The most that a process holds does not change, and no result does.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, 1 << 30)
    mallopt(M_TOP_PAD, 64 << 20)
