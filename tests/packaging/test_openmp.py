"""One OpenMP runtime in the process, torch's, and it has as many threads as torch was told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# In a process of its own: in that of the tests other packages may have brought runtimes of theirs.
# Two runtimes would show as two files, and as two workers where one serves torch and the core in turn.
SCRIPT = """
import ctypes, json, os, sys

import torch
from topkast.kernels.passes import top_k

def images():
    if sys.platform == "darwin":
        dyld = ctypes.CDLL(None)
        dyld._dyld_get_image_name.restype = ctypes.c_char_p
        return {dyld._dyld_get_image_name(i).decode() for i in range(dyld._dyld_image_count())}
    return {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if line.count("/")}

def threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else None

numbers = torch.randn(1 << 20)
seen = {}
for n in (1, 2):
    torch.set_num_threads(n)
    seen[f"before, {n}"] = threads()
    chosen = top_k(numbers, 1000)
    seen[f"core, {n}"] = threads()
    (numbers + 1).sum()
    seen[f"torch, {n}"] = threads()
assert sorted(chosen.tolist()) == sorted(numbers.abs().topk(1000).indices.tolist())
names = ("libgomp", "libomp", "libiomp")
runtimes = sorted({os.path.realpath(i) for i in images() if os.path.basename(i).startswith(names)})
print(json.dumps({"runtimes": runtimes, "torch": torch.__file__, "threads": seen}))
"""


def test_core_and_torch_share_one_openmp_runtime() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found["runtimes"]) == 1, f"several OpenMP runtimes in a process: {found['runtimes']}"
    assert Path(found["runtimes"][0]).is_relative_to(Path(found["torch"]).resolve().parent), (
        "it is torch's own"
    )
    if sys.platform != "linux":
        return
    threads = found["threads"]
    assert threads["before, 1"] == threads["core, 1"] == threads["torch, 1"]
    assert threads["core, 2"] == threads["before, 2"] + 1
    assert threads["torch, 2"] == threads["core, 2"], "torch uses the worker that the core has started"
