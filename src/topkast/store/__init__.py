"""What is kept on disk: whole files, state as tensors and JSON, checkpoints, snapshots of a run.

`docs/format.md` describes the files.
"""
