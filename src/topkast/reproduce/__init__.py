"""`topkast reproduce`: the paper's tables and figures, ours beside theirs, and a verdict on each claim."""
