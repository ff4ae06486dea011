"""Texts of words: numbering, the cache, the published figures, and what is refused."""

from __future__ import annotations

import gzip
import json
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topkast.data import wikitext
from topkast.data.vocabulary import INDEX, Vocabulary, count_words
from topkast.data.wikitext import EDITIONS, Edition, read_wikitext, read_words

TEXT = {
    "train": " \n = a b = \n c b <unk> b\n",
    "valid": "b new a\n",
    "test": "c c",
}


def _write(folder: Path, text: dict[str, str] = TEXT) -> Path:
    folder.mkdir(exist_ok=True)
    for part, content in text.items():
        (folder / f"wiki.{part}.tokens").write_text(content, encoding="utf-8")
    return folder


def test_a_small_text_by_eye(tmp_path: Path) -> None:
    words = read_words(_write(tmp_path))
    # b three times, = twice, then once each in the order of the text.
    assert words.vocabulary.words == ("<eos>", "b", "=", "a", "c", "<unk>")
    assert words.train.tolist() == [0, 2, 3, 1, 2, 0, 4, 1, 5, 1, 0]
    assert words.valid.tolist() == [1, 5, 3, 0]
    assert words.test.tolist() == [4, 4, 0]
    assert words.train.dtype == torch.int32
    assert words.vocabulary.decode(words.valid.tolist()) == "b <unk> a\n"


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "é", "<eos>", "<unk>"]), max_size=6), min_size=1, max_size=9)
)
def test_numbers_mean_their_words(lines: list[list[str]]) -> None:
    text = [" ".join(line) for line in lines]
    vocabulary, count = count_words(text)
    ids = np.concatenate(list(vocabulary.encode(text)))
    expected = [word for line in lines for word in (*line, "<eos>")]
    assert [vocabulary.words[i] for i in ids] == expected
    assert count == len(expected)
    counts = [expected.count(word) for word in vocabulary.words[1:]]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("form", [".gz", ".xz", ".zip", "names"])
def test_every_form_gives_the_same_numbers(form: str, tmp_path: Path) -> None:
    plain = _write(tmp_path / "plain")
    packed = tmp_path / "packed"
    packed.mkdir()
    for part, content in TEXT.items():
        if form == ".gz":
            (packed / f"wiki.{part}.tokens.gz").write_bytes(gzip.compress(content.encode()))
        elif form == ".xz":
            (packed / f"{part}.txt.xz").write_bytes(lzma.compress(content.encode()))
        elif form == "names":
            (packed / f"{part}.txt").write_text(content)
    if form == ".zip":
        packed = packed / "wikitext-x.zip"
        with zipfile.ZipFile(packed, "w") as archive:
            for part, content in TEXT.items():
                archive.writestr(f"wikitext-x/wiki.{part}.tokens", content)
    a, b = read_words(plain), read_words(packed)
    assert a.vocabulary.words == b.vocabulary.words
    assert all(torch.equal(getattr(a, part), getattr(b, part)) for part in TEXT)


def test_a_cache_gives_the_same_and_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = _write(tmp_path / "text"), tmp_path / "cache"
    fresh = read_words(folder)
    for _ in range(2):
        cached = read_words(folder, cache=cache)
        assert cached.vocabulary.words == fresh.vocabulary.words
        assert all(torch.equal(getattr(cached, part), getattr(fresh, part)) for part in TEXT)
        assert cached.train.dtype == torch.int32
        monkeypatch.setattr(wikitext, "count_words", None)  # the second time nothing is counted
    assert sorted(p.name for p in cache.iterdir()) == [
        "topkast-words-test.npy",
        "topkast-words-train.npy",
        "topkast-words-valid.npy",
        "topkast-words.json",
    ]
    assert len(list(folder.iterdir())) == 3


def test_a_cache_of_another_text_is_made_anew(tmp_path: Path) -> None:
    folder, cache = _write(tmp_path / "text"), tmp_path / "cache"
    read_words(folder, cache=cache)
    _write(folder, {"valid": "a a a\n"})
    assert read_words(folder, cache=cache).valid.tolist() == [3, 3, 3, 0]


def _break_index(cache: Path) -> None:
    (cache / INDEX).write_text("{")


def _break_words(cache: Path) -> None:
    index = json.loads((cache / INDEX).read_text())
    index["words"][1] = "changed"
    (cache / INDEX).write_text(json.dumps(index))


def _break_ids(cache: Path) -> None:
    path = cache / "topkast-words-train.npy"
    path.write_bytes(path.read_bytes()[:-4] + b"\7\0\0\0")


def _cut_ids(cache: Path) -> None:
    path = cache / "topkast-words-train.npy"
    path.write_bytes(path.read_bytes()[:-3])


def _pickle_ids(cache: Path) -> None:
    np.save(cache / "topkast-words-train.npy", np.array([print], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("harm", [_break_index, _break_words, _break_ids, _cut_ids, _pickle_ids])
def test_a_damaged_cache_is_made_anew(harm, tmp_path: Path) -> None:
    folder, cache = _write(tmp_path / "text"), tmp_path / "cache"
    before = read_words(folder, cache=cache)
    expected = before.train.clone()
    harm(cache)
    after = read_words(folder, cache=cache)
    assert torch.equal(after.train, expected)
    assert after.vocabulary.words == before.vocabulary.words


def test_a_mapped_cache_is_not_written_to(tmp_path: Path) -> None:
    folder, cache = _write(tmp_path / "text"), tmp_path / "cache"
    read_words(folder, cache=cache).train[0] = 5
    assert int(read_words(folder, cache=cache).train[0]) == 0


def test_a_cache_must_be_a_folder(tmp_path: Path) -> None:
    folder = _write(tmp_path / "text")
    with pytest.raises(ValueError, match=r"`cache` must be a folder, but .*tokens is a file"):
        read_words(folder, cache=folder / "wiki.test.tokens")


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        read_words(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"has neither wiki\.train\.tokens nor train\.txt, packed or not"
    ):
        read_words(tmp_path)
    _write(tmp_path)
    path = tmp_path / "wiki.valid.tokens"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"wiki\.valid\.tokens is empty"):
        read_words(tmp_path)
    path.write_bytes(b"a\nb \xff\n")
    with pytest.raises(ValueError, match=r"valid\.tokens must be UTF-8, but line 2 is not"):
        read_words(tmp_path)
    monkeypatch.setattr(wikitext, "_LONGEST_LINE", 100)
    path.write_bytes(b"a" * 100)
    with pytest.raises(ValueError, match="has a line of more than 100 bytes: it is no text of words"):
        read_words(tmp_path)
    path.unlink()
    packed = lzma.compress(b"a b c\n" * 1000)
    (tmp_path / "valid.txt.xz").write_bytes(packed[:-30])
    with pytest.raises(ValueError, match=r"valid\.txt\.xz is damaged"):
        read_words(tmp_path)


def test_unknown_words_need_a_word_for_them(tmp_path: Path) -> None:
    _write(tmp_path, {**TEXT, "train": "a b c\n"})
    with pytest.raises(ValueError, match="the word 'new' is not in the vocabulary, which has no <unk>"):
        read_words(tmp_path)
    with pytest.raises(ValueError, match="the first word must be <eos>"):
        Vocabulary(["a"])
    with pytest.raises(ValueError, match="1 words occur twice"):
        Vocabulary(["<eos>", "a", "a"])


def test_another_text_is_not_taken_for_wikitext(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="is not wikitext-2: its train must have 2,088,628 words, got 11; .*`read_words`"
    ):
        read_wikitext("wikitext-2", _write(tmp_path))
    with pytest.raises(ValueError, match="`name` must be one of wikitext-2, wikitext-103, got 'ptb'"):
        read_wikitext("ptb", tmp_path)  # pyright: ignore[reportArgumentType]


def test_a_letter_changed_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    known = {part: (len(text), hashlib.sha256(text.encode()).hexdigest()) for part, text in TEXT.items()}
    monkeypatch.setitem(EDITIONS, "wikitext-2", Edition((11, 4, 3), 6, known))
    _write(tmp_path)
    assert read_wikitext("wikitext-2", tmp_path).num_symbols == 6
    _write(tmp_path, {"test": "c b"})
    with pytest.raises(ValueError, match=r"test\.tokens is damaged: the SHA-256 of its 3 bytes must be"):
        read_wikitext("wikitext-2", tmp_path)


def test_the_real_wikitext_2_has_the_published_figures(data_folder: Path, tmp_path: Path) -> None:
    words = read_wikitext("wikitext-2", data_folder / "wikitext-2", cache=tmp_path)
    assert words.num_symbols == 33_278
    assert words.vocabulary.words[:6] == ("<eos>", "the", ",", ".", "of", "<unk>")
    assert words.vocabulary.decode(words.train[:6].tolist()) == "\n = Valkyria Chronicles III ="


def test_wikitext_103_without_its_training_text_says_where_to_get_it(data_folder: Path) -> None:
    if (data_folder / "wikitext-103" / "wiki.train.tokens").exists():
        pytest.skip("the training text is there")
    with pytest.raises(
        FileNotFoundError, match=r"wiki\.train\.tokens .* can be had from wikitext-103-v1\.zip"
    ):
        read_wikitext("wikitext-103", data_folder / "wikitext-103")
