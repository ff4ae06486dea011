"""The training job: tasks, the loop, what it reports."""
