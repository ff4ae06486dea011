"""Keeping freed memory, and counting it: in processes of their own."""

import os
import platform
import subprocess
import sys

import pytest

from topkast.kernels.machine import peak_memory

PROGRAM = """
import resource, sys, torch, topkast
if sys.argv[1] == "keep":
    assert topkast.keep_freed_memory()
# Within, 64 MB: up to 32 glibc learns to keep them by itself, if they happen to lie well.
model = torch.nn.Sequential(torch.nn.Linear(16, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 16))
x = torch.randn(4096, 16)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(20):
    if step == 10:
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
    # The system itself may take pages away; it does not do so every time.
    assert any(faults_of_ten_steps("keep") < default / 10 for _ in range(3))


def test_the_peak_is_that_of_the_process_and_not_of_who_started_it() -> None:
    program = "from topkast.kernels.machine import peak_memory; print(peak_memory())"
    alone = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    large = bytearray(2 * alone)
    large[::4096] = b"x" * len(large[::4096])  # so that the memory is there
    child = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert peak_memory() > 2 * alone
    assert child < 1.5 * alone
