"""What is kept on disk: whole files, state as tensors and JSON, checkpoints, snapshots, records of a run.

`docs/format.md` describes the files.
"""
