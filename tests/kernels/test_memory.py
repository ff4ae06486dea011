"""Keeping freed memory: page faults are counted in a process of its own."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch, topkast
if sys.argv[1] == "keep":
    assert topkast.keep_freed_memory()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.zeros(16 << 20)
before = faults()
torch.zeros(16 << 20)
print(faults() - before)
"""


def faults_of_the_second_tensor(what: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_kept_memory_is_not_faulted_in_again() -> None:
    assert faults_of_the_second_tensor("keep") < 100
    assert faults_of_the_second_tensor("default") > 100  # else there would be nothing to keep
