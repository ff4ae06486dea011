"""Data sets: those on every machine, readers for the paper's, batches that are functions of the step.

Text: `enwik8`, `wikitext`, `plain_text`; cut into `segments`. Images: `images` (idx, CIFAR-10, small class
folders, digits) with `batches`; `imagenet` with `image_stream`. Where sets are looked for: `datasets`.
"""
