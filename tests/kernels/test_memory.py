"""Keeping freed memory: page faults are counted in a process of its own."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch, topkast
if sys.argv[1] == "keep":
    assert topkast.keep_freed_memory()
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 256))
x = torch.randn(1024, 256)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(40):
    if step == 30:
        before = faults()
    model(x).square().mean().backward()
print(faults() - before)
"""


def faults_of_ten_steps(what: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer brings its own malloc")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_kept_memory_is_not_faulted_in_again() -> None:
    default = faults_of_ten_steps("default")
    assert default > 1000  # else there would be nothing to keep
    assert faults_of_ten_steps("keep") < default / 10
