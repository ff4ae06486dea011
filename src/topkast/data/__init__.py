"""Data sets: those on every machine, readers for the paper's, batches that are functions of the step.

Text: `enwik8`, `wikitext`, `text`, `stdlib_text`; cut into `segments`. Images: `images` (idx, CIFAR-10,
small class folders) with `batches`; `imagenet` and `decoded` with `image_stream`. Where sets are looked for:
`files`.
"""
