"""A checkpoint is complete or not there, and a damaged one is refused by name, whatever happened to it."""

from __future__ import annotations

import builtins
import errno
import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from store.small_run import Run, assert_same
from topkast.store import checkpoint, files, manifest, snapshot
from topkast.store.checkpoint import CheckpointWriteError, Retention
from topkast.store.files import Patience
from topkast.store.manifest import CheckpointError

pytestmark = pytest.mark.usefixtures("one_thread")
NO_PAUSE = Patience(attempts=2, pause=0.0)
FILES = ("tensors.safetensors", "state.json", "manifest.json")


def small(step: int) -> snapshot.Snapshot:
    weights = torch.full((50,), float(step))
    return snapshot.Snapshot(step, {"w": weights}, {}, {}, {"step twice": 2 * step})


def put(run: Path, *steps: int, **options: Any) -> list[Path]:
    return [checkpoint.write(run, small(step), **options) for step in steps]


def steps(run: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.found(run)]


def assert_good(run: Path, step: int) -> None:
    found = checkpoint.latest(run)
    assert found.snapshot is not None
    assert_same(vars(small(step)), vars(found.snapshot))


# ---- what is written ------------------------------------------------------------------------------


def test_one_folder_with_three_files_that_others_may_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        (path,) = put(tmp_path, 12)
    finally:
        os.umask(before)
    assert path == tmp_path / "checkpoints" / "step-00000012"
    assert sorted(p.name for p in path.iterdir()) == sorted(FILES)
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o644 for p in path.iterdir())
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert torch.equal(load_file(path / "tensors.safetensors")["snapshot/parts/w"], torch.full((50,), 12.0))
    content = json.loads((path / "manifest.json").read_text())
    assert (content["format"], content["step"], content["score"]) == (1, 12, None)
    assert os.listdir(tmp_path) == ["checkpoints"]


def test_the_last_and_the_best_stay(tmp_path: Path) -> None:
    for step, score in [(1, 0.1), (2, 0.9), (3, None), (4, float("nan")), (5, 0.9), (6, 0.2), (7, 0.3)]:
        put(tmp_path, step, score=score, retention=Retention(last=2))
        assert_good(tmp_path, step)
    assert steps(tmp_path) == [7, 6, 5]
    put(tmp_path, 8, score=0.0, retention=Retention(last=1, best=False))
    assert steps(tmp_path) == [8]
    with pytest.raises(ValueError, match="`last` must be at least 1, got 0"):
        Retention(last=0)


def test_the_one_just_written_always_stays(tmp_path: Path) -> None:
    put(tmp_path, 10, 20, 30)
    put(tmp_path, 15, retention=Retention(last=1))  # the run was taken up again at 10
    assert steps(tmp_path) == [30, 20, 15]


def test_damaged_ones_do_not_count_as_the_last(tmp_path: Path) -> None:
    paths = put(tmp_path, 1, 2, 3)
    (paths[2] / "state.json").unlink()
    put(tmp_path, 4, retention=Retention(last=2))
    assert steps(tmp_path) == [4, 2]


def test_the_same_step_may_be_written_again(tmp_path: Path) -> None:
    put(tmp_path, 1, 2, 2)
    assert steps(tmp_path) == [2, 1]
    assert_good(tmp_path, 2)
    # Killed between the two renames: what was there still counts.
    path = checkpoint.found(tmp_path)[0]
    path.rename(path.with_name(path.name + ".old"))
    assert_good(tmp_path, 2)
    put(tmp_path, 2)
    assert [p.name for p in checkpoint.found(tmp_path)] == ["step-00000002", "step-00000001"]


def test_leftovers_are_ignored_and_then_removed(tmp_path: Path) -> None:
    (path,) = put(tmp_path, 1)
    shutil.copytree(path, path.with_name(".tmp-step-00000002-123"))
    path.with_name("notes").mkdir()  # somebody's own
    assert_good(tmp_path, 1)
    put(tmp_path, 3)
    assert sorted(os.listdir(path.parent)) == ["notes", "step-00000001", "step-00000003"]


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) == checkpoint.Latest(None, None, {})


def test_a_step_before_the_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        put(tmp_path, -1)


# ---- what is read ---------------------------------------------------------------------------------


def rename_step(path: Path) -> None:
    path.rename(path.with_name("step-00000009"))


def swap_tensors(path: Path) -> None:
    shutil.copy(path.with_name("step-00000001") / "tensors.safetensors", path / "tensors.safetensors")


def forge(path: Path, **changes: Any) -> None:
    """Another manifest that is right in itself."""
    was = manifest.parse((path / "manifest.json").read_bytes())
    new = manifest.Manifest(**{**vars(was), **changes})
    (path / "manifest.json").write_bytes(new.dump())


def forge_file(path: Path, name: str, content: bytes) -> None:
    (path / name).unlink()
    record = files.write_new(path / name, [content])
    listed = manifest.parse((path / "manifest.json").read_bytes()).files
    forge(path, files={**listed, name: record})


def forge_text(path: Path, was: str, now: str) -> None:
    """A manifest with another text in it, and the digest of all of that."""
    fields = json.loads((path / "manifest.json").read_bytes())
    del fields["digest"]
    text = json.dumps(fields, indent=1) + "\n"
    assert was in text
    text = text.replace(was, now)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (path / "manifest.json").write_text(text.removesuffix("\n}\n") + f',\n "digest": "{digest}"\n}}\n')


def forge_name(path: Path, name: str) -> None:
    """A manifest that lists a file elsewhere, with its true size and digest, in place of the state."""
    files = manifest.parse((path / "manifest.json").read_bytes()).files
    content = (path / name).read_bytes()
    record = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(path, files={"tensors.safetensors": files["tensors.safetensors"], name: record})


def forge_state(path: Path, step: str = "2", parts: str = "[]", kept: str = "[]") -> None:
    """A state that has all fields, as JSON; its tensor is in `generators`."""
    dicts = {
        "parts": parts,
        "generators": '[["w", {"tensor": "snapshot/parts/w"}]]',
        "rng": "[]",
        "kept": kept,
    }
    pairs = ", ".join(f'["{name}", {{"dict": {content}}}]' for name, content in dicts.items())
    forge_file(path, "state.json", f'{{"dict": [["step", {step}], {pairs}]}}'.encode())


def other_format(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"format": 1', '"format": 2'))


def pipe(path: Path) -> None:
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (lambda p: (p / "manifest.json").unlink(), r"manifest.json is missing: the checkpoint is incomplete"),
    "empty manifest": (lambda p: (p / "manifest.json").write_text(""), r"manifest.json: it is not a manifest, or it was altered"),
    "spaced manifest": (lambda p: (p / "manifest.json").write_text((p / "manifest.json").read_text() + " "), r"manifest.json: .*altered"),
    "huge manifest": (lambda p: (p / "manifest.json").write_bytes(b" " * 70_000), r"manifest.json has 70,000 bytes, more than"),
    "deep manifest": (lambda p: (p / "manifest.json").write_bytes(b"[" * 60_000), r"manifest.json: it is not a manifest"),
    "other format": (other_format, r"manifest.json: it has format 2, this version of topkast reads 1"),
    "other step": (lambda p: forge(p, step=3), r"manifest.json is that of another checkpoint \(step 3\)"),
    "other files": (lambda p: forge(p, files={}), r"manifest.json must list state.json and tensors.safetensors, and nothing else"),
    "odd sizes": (lambda p: forge(p, files={"state.json": {"size": 1.0, "sha256": ""}}), r"manifest.json: it is not a manifest"),
    "a score that is text": (lambda p: forge(p, score="best"), r"manifest.json: it is not a manifest"),
    "a score that is a truth": (lambda p: forge(p, score=True), r"manifest.json: it is not a manifest"),
    "a score that is a list": (lambda p: forge(p, score=[1.0]), r"manifest.json: it is not a manifest"),
    "a score beyond numbers": (lambda p: forge_text(p, '"score": null', '"score": 1e400'), r"manifest.json: it is not a manifest"),
    "a step beyond numbers": (lambda p: forge_text(p, '"step": 2', '"step": 1' + "0" * 5000), r"manifest.json: it is not a manifest"),
    "a step that is a truth": (lambda p: forge(p, step=True), r"manifest.json: it is not a manifest"),
    "a step before the first": (lambda p: forge(p, step=-2), r"manifest.json is that of another checkpoint \(step -2\)"),
    "a format that is a truth": (lambda p: forge_text(p, '"format": 1', '"format": true'), r"manifest.json: it is not a manifest"),
    "a deep file entry": (lambda p: forge_text(p, '"score": null', '"score": ' + "[" * 9000 + "]" * 9000), r"manifest.json: it is not a manifest"),
    "files are a list": (lambda p: forge(p, files=[]), r"manifest.json: it is not a manifest"),
    "a size that is a truth": (lambda p: forge(p, files={"state.json": {"size": True, "sha256": ""}}), r"manifest.json: it is not a manifest"),
    "a size below zero": (lambda p: forge_text(p, '"size": ', '"size": -'), r"(state.json|tensors.safetensors) has \d+ bytes, manifest.json says -"),
    "a file of another checkpoint": (lambda p: forge_name(p, "../step-00000001/state.json"), r"manifest.json must list state.json and tensors.safetensors, and nothing else"),
    "a file of another folder": (lambda p: forge_name(p, str(Path(__file__).resolve())), r"manifest.json must list state.json and"),
    "renamed": (rename_step, r"manifest.json is that of another checkpoint \(step 2\)"),
    "no state": (lambda p: (p / "state.json").unlink(), r"state.json is missing"),
    "no tensors": (lambda p: (p / "tensors.safetensors").unlink(), r"tensors.safetensors is missing"),
    "one more": (lambda p: (p / "more.pt").touch(), r"more.pt does not belong to the checkpoint"),
    "a longer file": (lambda p: (p / "state.json").write_bytes((p / "state.json").read_bytes() + b" "), r"state.json has \d+ bytes, manifest.json says \d+"),
    "another's file": (swap_tensors, r"tensors.safetensors was altered: its SHA-256 is not the one in manifest.json"),
    "a pipe": (pipe, r"state.json is not a regular file"),
    "a folder": (lambda p: [(p / "state.json").unlink(), (p / "state.json").mkdir()], r"state.json is not a regular file"),
    "no folder": (lambda p: [shutil.rmtree(p), p.touch()], r"step-00000002 cannot be read \(Not a directory\)"),
    "state is no JSON": (lambda p: forge_file(p, "state.json", b"\x80"), r"state.json is not the state of a run"),
    "state is deep": (lambda p: forge_file(p, "state.json", b"[" * 100_000), r"state.json is not the state of a run"),
    "state is something else": (lambda p: forge_file(p, "state.json", b"[]"), r"state.json is not the state of a run"),
    "state has no fields": (lambda p: forge_file(p, "state.json", b'{"dict": [["a", {"tensor": "snapshot/parts/w"}]]}'), r"state.json .*expected step, parts"),
    "state has huge numbers": (lambda p: forge_file(p, "state.json", b"1" * 10_000), r"state.json is not the state of a run"),
    "state nests deeply": (lambda p: forge_state(p, kept='[["a", ' + '{"tuple": [' * 2000 + "]}" * 2000 + "]]"), r"state.json is not the state of a run \(.*(deep|recursion)"),
    "state of a step before the first": (lambda p: forge_state(p, step="-2"), r"state.json is that of step -2, not 2"),
    "state of a true step": (lambda p: forge_state(p, step="true"), r"state.json .*expected step, parts"),
    "state of half a step": (lambda p: forge_state(p, step="2.0"), r"state.json .*expected step, parts"),
    "state of a step beyond numbers": (lambda p: forge_state(p, step="1e400"), r"state.json .*expected step, parts"),
    "parts by number": (lambda p: forge_state(p, parts='[[1, 2], ["model", 3]]'), r"state.json .*parts must be by name"),
    "kept by nothing": (lambda p: forge_state(p, kept="[[null, 2]]"), r"state.json .*kept must be by name"),
    "kept by tensor": (lambda p: forge_state(p, kept='[[{"tensor": "snapshot/parts/w"}, 2]]'), r"state.json .*a tensor cannot be a key"),
    "kept by list": (lambda p: forge_state(p, kept="[[[], 2]]"), r"state.json .*a list cannot be a key"),
    "tensors are none": (lambda p: forge_file(p, "tensors.safetensors", b"\xff" * 40), r"tensors.safetensors: it is not a safetensors file"),
    "tensors are hostile": (lambda p: forge_file(p, "tensors.safetensors", (64).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,4]}}  abcd'), r"tensors.safetensors: it is not a safetensors file"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(damage: str, tmp_path: Path) -> None:
    _, path = put(tmp_path, 1, 2)
    apply, message = DAMAGE[damage]
    apply(path)
    found = checkpoint.latest(tmp_path)
    assert found.path == tmp_path / "checkpoints" / "step-00000001"
    assert_good(tmp_path, 1)
    ((bad, reason),) = found.damaged.items()
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(bad)
    assert reason.startswith(str(bad))


def test_a_score_that_is_no_number_does_not_stop_a_run(tmp_path: Path) -> None:
    put(tmp_path, 1, score=0.5)
    (path,) = put(tmp_path, 2, score=0.7)
    forge(path, score="best")
    put(tmp_path, 3, score=0.1, retention=Retention(last=1))
    assert steps(tmp_path) == [3, 1]


OPENED: list[str] | None = None


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and OPENED is not None:
        OPENED.append(str(arguments[0]))


def test_a_name_that_leads_out_of_the_checkpoint_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = put(tmp_path, 1, 2)
    (tmp_path / "secret").write_text("secret")
    sys.addaudithook(_note_opened)  # for good; it notes nothing after this test
    for name in ("../../secret", str(tmp_path / "secret"), "./state.json"):
        forge_name(path, name)
        opened: list[str] = []
        monkeypatch.setattr(sys.modules[__name__], "OPENED", opened)
        with pytest.raises(CheckpointError, match="must list state.json and tensors.safetensors"):
            checkpoint.read(path)
        monkeypatch.undo()
        assert opened == [str(path / "manifest.json")]
        put(tmp_path, 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (path,) = put(tmp_path, 1)
    (path / "state.json").chmod(0)
    with pytest.raises(CheckpointError, match=r"state.json cannot be read \(Permission denied\)"):
        checkpoint.read(path)


def test_a_folder_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a checkpoint is named like step-00001234"):
        checkpoint.read(tmp_path)


def test_any_byte_flipped_or_cut_is_noticed(tmp_path: Path) -> None:
    run = Run.build(0, reservoir="implicit")
    run.train(0, 4)
    checkpoint.write(tmp_path, small(3))
    path = checkpoint.write(tmp_path, run.take(4), score=0.25)
    pristine = {name: (path / name).read_bytes() for name in FILES}
    chance = random.Random(0)
    for number in range(240):
        name = FILES[number % 3]
        content = bytearray(pristine[name])
        place = chance.randrange(len(content))
        if number % 4 == 3:
            del content[place:]
        else:
            content[place] ^= chance.randrange(1, 256)
        (path / name).write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            checkpoint.read(path)
        assert str(caught.value).startswith(str(path / name)), (name, place)
        found = checkpoint.latest(tmp_path)
        assert (found.snapshot is not None, list(found.damaged)) == (True, [path])
        assert found.path == path.with_name("step-00000003")
        (path / name).write_bytes(pristine[name])
    assert checkpoint.latest(tmp_path).path == path


# ---- a disk that fails ----------------------------------------------------------------------------


class Faults:
    """Lets calls that write fail: from the given one on, or only that one."""

    def __init__(self, patch: pytest.MonkeyPatch, *, persistent: bool) -> None:
        self.calls, self.first, self.persistent = 0, -1, persistent
        for name in ("fsync", "rename", "mkdir", "replace"):
            patch.setattr(os, name, self._counted(getattr(os, name)))
        patch.setattr(files, "open", self._open, raising=False)

    def fail_from(self, first: int) -> None:
        self.calls, self.first = 0, first

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.check()
            return function(*args, **options)

        return call

    def check(self) -> None:
        number, self.calls = self.calls, self.calls + 1
        if self.first >= 0 and (number >= self.first if self.persistent else number == self.first):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self, *args: Any, **options: Any) -> Any:
        self.check()
        return Faulty(builtins.open(*args, **options), self)


class Faulty:
    """A file whose writes may fail half-way."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def write(self, content: Any) -> None:
        try:
            self._faults.check()
        except OSError:
            self._file.write(bytes(content)[: len(content) // 2])
            raise
        self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Faulty:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.fixture(params=["new step", "same step"])
def next_step(request: pytest.FixtureRequest) -> int:
    return 2 if request.param == "new step" else 1


def rounds(faults: Faults) -> Iterator[int]:
    """Every call that a write makes, in turn, until one of them is never reached."""
    number = 0
    while True:
        faults.fail_from(number)
        yield number
        if faults.calls <= number:
            assert number > 8
            return
        number += 1


def test_one_failing_call_is_tried_again(
    tmp_path: Path, next_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(monkeypatch, persistent=False)
    for number in rounds(faults):
        run = tmp_path / str(number)
        faults.first = -1
        put(run, 1)
        faults.fail_from(number)
        put(run, next_step, patience=NO_PAUSE)
        assert_good(run, next_step)
        assert checkpoint.latest(run).damaged == {}


def test_a_full_disk_loses_nothing(tmp_path: Path, next_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(monkeypatch, persistent=True)
    num_failed = 0
    for number in rounds(faults):
        run = tmp_path / str(number)
        faults.first = -1
        put(run, 1)
        faults.fail_from(number)
        try:
            put(run, next_step, patience=NO_PAUSE)
        except CheckpointWriteError as error:
            num_failed += 1
            good = checkpoint.latest(run).path
            assert f"the checkpoint of step {next_step} could not be written" in str(error)
            assert f"No space left on device); the checkpoint {good} is still good; make room" in str(error)
        calls, faults.first = faults.calls, -1
        found = checkpoint.latest(run)
        assert found.damaged == {}
        assert found.snapshot is not None
        assert_good(run, found.snapshot.step)
        put(run, 3)  # room was made
        assert_good(run, 3)
        assert not list((run / "checkpoints").glob(".tmp-*"))
        faults.calls = calls
    assert num_failed > 8


def test_without_an_earlier_checkpoint_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Faults(monkeypatch, persistent=True).fail_from(3)
    with pytest.raises(
        CheckpointWriteError, match="there is no earlier checkpoint; make room and start again"
    ):
        put(tmp_path, 1, patience=NO_PAUSE)
    assert list((tmp_path / "checkpoints").iterdir()) == []


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from topkast.store import checkpoint, files, snapshot
run = Path(sys.argv[1])
take = lambda step, size: snapshot.take(step, {}, kept={"w": torch.full((size,), float(step))})
checkpoint.write(run, take(1, 10))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoint.write(run, take(2, 100_000), patience=files.Patience(2, 0.0))
except checkpoint.CheckpointWriteError as error:
    print(error)
"""


def test_a_limit_of_the_system_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "File too large); the checkpoint" in result.stdout
    assert "step-00000001 is still good" in result.stdout
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    found = checkpoint.latest(tmp_path).snapshot
    assert found is not None
    assert torch.equal(found.kept["w"], torch.full((10,), 1.0))
