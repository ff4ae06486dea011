"""Several ways of training the same network on the same data with the same seeds, a process each.

    OUT/topkast-contest.json   says that this is ours, and which runs belong to it
        configs/NAME.toml      what each of them is told
        NAME/                  its run folder

In a process of its own each run has the memory, the generators and the threads that it would have alone, and
one that dies takes no other with it.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from topkast.core.distribution import nearest
from topkast.methods.named import METHODS
from topkast.store.files import replace
from topkast.store.record import METRICS, read_events
from topkast.store.run import End
from topkast.train.config import Config
from topkast.train.folder import MARKER as RUN_MARKER
from topkast.train.interrupt import Interrupt
from topkast.train.resolve import make_method, resolve
from topkast.train.session import Stopped
from topkast.train.tasks import make_task

MARKER = "topkast-contest.json"
FORMAT = 1


@dataclass(frozen=True)
class Contender:
    """A method at its sparsities.

    Attributes:
        method: Its name.
        forward: Forward sparsity; None for its default.
        backward: Backward sparsity; None for its default.
    """

    method: str
    forward: float | None = None
    backward: float | None = None

    @classmethod
    def parse(cls, text: str) -> Contender:
        """From ``METHOD``, ``METHOD:FORWARD`` or ``METHOD:FORWARD/BACKWARD``, such as ``topkast:0.9/0.8``.

        Raises:
            ValueError: It is none of these.
        """
        method, _, sparsities = text.partition(":")
        if method not in METHODS:
            raise ValueError(f"{text!r}: the method must be one of {nearest(method, METHODS)}")
        try:
            numbers = [float(part) for part in sparsities.split("/")] if sparsities else []
        except ValueError:
            numbers = []
        if bool(sparsities) != bool(numbers) or len(numbers) > 2 or (":" in text and not numbers):
            raise ValueError(f"{text!r} must be like topkast:0.9/0.8, rigl:0.9 or dense")
        return cls(method, *numbers)

    def config(self, base: Config, seed: int) -> Config:
        """The configuration of its run."""
        method = dataclasses.replace(
            base.method, method=self.method, forward_sparsity=self.forward, backward_sparsity=self.backward
        )
        train = dataclasses.replace(base.train, seed=seed)
        run = dataclasses.replace(base.run, reference=("none",))
        return dataclasses.replace(base, method=method, train=train, run=run)

    def name(self, seed: int) -> str:
        """Of its run folder."""
        numbers = [f"{number:g}" for number in (self.forward, self.backward) if number is not None]
        return "-".join([self.method, *numbers, f"seed{seed}"])


def plan(base: Config, contenders: Iterable[Contender], seeds: Iterable[int]) -> dict[str, Config]:
    """The runs, by name: seed by seed, so that an early stop leaves whole comparisons. All are checked.

    Raises:
        ValueError: A contender or a seed is given twice, or settings that its method does not have.
    """
    contenders, seeds = list(contenders), list(seeds)
    pairs = [(contender, seed) for seed in seeds for contender in contenders]
    configs = {contender.name(seed): contender.config(base, seed) for contender, seed in pairs}
    if len(configs) < len(pairs):
        raise ValueError("each contender and each seed can be given once only")
    if len(configs) < 2:
        raise ValueError(f"a comparison takes at least two runs, got {len(configs)}")
    task = make_task(base)
    for name, config in configs.items():
        try:
            make_method(resolve(config, task))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return configs


def create(out: Path, configs: Mapping[str, Config]) -> None:
    """Makes the folder, with what each run is told.

    Raises:
        FileExistsError: There is something already.
    """
    if (out / MARKER).is_file():
        raise FileExistsError(
            f"{out} holds a comparison already: go on with --resume {out}, or choose another"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is not an empty folder; choose another place with --out")
    (out / "configs").mkdir(parents=True, exist_ok=True)
    for name, config in configs.items():
        replace(_config(out, name), config.to_toml().encode())
    replace(out / MARKER, (json.dumps({"format": FORMAT, "runs": list(configs)}, indent=1) + "\n").encode())


def names(out: Path) -> list[str]:
    """The runs of a comparison.

    Raises:
        ValueError: It is not one of ours.
    """
    try:
        content = json.loads((out / MARKER).read_bytes())
        runs = content["runs"] if content["format"] == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        runs = None
    if not isinstance(runs, list) or not all(isinstance(n, str) and Path(n).name == n for n in runs):
        raise ValueError(f"{out} is not the folder of a comparison: it has no good {MARKER}")
    return runs


def is_finished(run: Path) -> bool:
    """Whether a run has ended by itself."""
    if not (run / METRICS).is_file():
        return False
    return any(isinstance(event, End) and event.stopped is None for event in read_events(run / METRICS))


def go(out: Path, *, quiet: bool = False) -> int:
    """Runs what is not finished yet, one after another.

    Returns:
        0, or what the shell expects after a signal.

    Raises:
        Stopped: A run failed.
    """
    with Interrupt() as interrupt:
        for name in names(out):
            if is_finished(out / name):
                continue
            code = _train(out, name, quiet, interrupt)
            if interrupt.signal is not None:
                return interrupt.exit_code
            if code != 0:
                raise Stopped(
                    f"{name} ended with {_said(code)}; go on with: topkast compare --resume {out}, or "
                    f"leave it out: topkast report {out}/*/"
                )
    return 0


def _train(out: Path, name: str, quiet: bool, interrupt: Interrupt) -> int:
    """One run, from its beginning or from its last checkpoint, in a process of its own."""
    is_begun = (out / name / RUN_MARKER).is_file()
    told = ["--resume", out / name] if is_begun else ["--config", _config(out, name), "--out", out / name]
    command = [sys.executable, "-m", "topkast", "train", *map(str, told), "--no-report"]
    # In a group of its own: a signal reaches it once, from here, and not from the terminal as well.
    process = subprocess.Popen(
        [*command, "--quiet"] if quiet else command, stdin=subprocess.DEVNULL, process_group=0
    )
    is_told = False
    while True:
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if interrupt.signal is not None and not is_told:
                process.send_signal(interrupt.signal)
                is_told = True
        except BaseException:
            process.kill()
            process.wait()
            raise


def _config(out: Path, name: str) -> Path:
    return out / "configs" / f"{name}.toml"


def _said(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
