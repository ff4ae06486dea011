from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topkast.methods import TopKAST
from topkast.train.config import SECTIONS, Config, read_config, read_run_config, section_of
from topkast.train.options import Rule, rules
from topkast.train.preset_options import preset_values
from topkast.train.resolve import make_method


def _values(rule: Rule) -> st.SearchStrategy[Any]:
    """Values that a rule allows."""
    if rule.choices:
        one: st.SearchStrategy[Any] = st.sampled_from(list(rule.choices))
    elif rule.kind is int:
        one = st.integers(int(rule.least or 0), int(rule.most or 10**9))
    elif rule.kind is float:
        one = st.floats(rule.least or 0, rule.most or 1e30, allow_subnormal=False)
    elif rule.kind is bool:
        one = st.booleans()
    else:
        one = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
    if rule.words:
        one |= st.sampled_from(list(rule.words))
    return st.lists(one, max_size=4) if rule.many else one


@given(data=st.data())
def test_toml_gives_the_same_configuration_back(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chosen = {
        name: {
            key: data.draw(_values(rule), label=f"{name}.{key}")
            for key, rule in rules(section).items()
            if data.draw(st.booleans())
        }
        for name, section in SECTIONS.items()
    }
    config = Config().with_values(chosen)
    text = config.to_toml()
    assert Config().with_values({k: v for k, v in tomllib.loads(text).items() if k != "format"}) == config
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(text, encoding="utf-8")
    assert read_config(path) == config


def test_floors_are_options_of_topkast_alone() -> None:
    floors = {"min_fan_in": 2, "min_fan_out": 1}
    config = Config().with_values({"method": floors, "train": {"steps": 10}})
    method = make_method(config)
    assert isinstance(method, TopKAST)
    assert (method.min_fan_in, method.min_fan_out) == (2, 1)
    with pytest.raises(ValueError, match=r"rigl has no `min_fan_in` \(got 2\)"):
        make_method(config.with_values({"method": {"method": "rigl"}}))


def test_names_are_unique_over_sections() -> None:
    names = [name for section in SECTIONS.values() for name in rules(section)]
    assert len(names) == len(set(names))
    assert section_of("width") == "model"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nstpes = 4", r"train.stpes is not an option; there are 'steps'"),
        ("[trian]\nsteps = 4", r"\[trian\] is not a section; there are 'train'"),
        ("train = 4", r"train must be a section such as \[train\], got 4"),
        ("[train]\nsteps = 0", r"train.steps must be at least 1, got 0"),
        ("[train]\nsteps = 4.5", r"train.steps must be a whole number, got 4.5"),
        ("[train]\nsteps = true", r"train.steps must be a whole number, got True"),
        ("[train]\nlr = nan", r"train.lr must be finite, got nan"),
        ("[train]\nlr = '1e-3'", r"train.lr must be a number, got '1e-3'"),
        ("[train]\nsparse_rate = 'root'", r"train.sparse_rate must be a number or 'same' or 'sqrt' or 'inv"),
        ("[train]\nsparse_rate = -0.5", r"train.sparse_rate must be at least 0, got -0.5"),
        ("[train]\noptimizer = 'adanw'", r"train.optimizer must be one of 'adamw'"),
        ("[method]\nmethod = 'rigle'", r"method.method must be one of 'rigl'"),
        ("[model]\nhidden = 256", r"model.hidden must be a list, got 256"),
        ("[model]\nhidden = [256, -1]", r"model.hidden must be at least 1, got -1"),
        ("[train\nsteps = 4", r"is not a TOML file"),
        ("[train]\nlr = 1" + "0" * 400, r"train.lr must be finite, got a number of 1329 bits"),
        ("[train]\nsteps = 1" + "0" * 5000, r"config.toml is not a TOML file"),
        ("a = " + "[" * 20_000, r"config.toml is not a TOML file"),
        ("format = true", r"has format True, this version of topkast reads format 1"),
        ("format = 7", r"has format 7, this version of topkast reads format 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_binary_is_not_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="is not a TOML file"):
        read_config(path)


@pytest.mark.parametrize(
    ("rule", "text", "value"),
    [
        (Rule(int, ""), "4", 4),
        (Rule(float, ""), "1e-3", 1e-3),
        (Rule(int, "", many=True), "4,5", [4, 5]),
        (Rule(str, "", many=True), "", []),
        (Rule(bool, ""), "true", True),
        (Rule(float, "", words=("same",)), "same", "same"),
        (Rule(float, "", words=("same",)), "0.5", 0.5),
    ],
)
def test_flags_are_parsed_by_their_rules(rule: Rule, text: str, value: object) -> None:
    assert rule.parse(text) == value


def test_a_flag_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a whole number, got 'four'"):
        Rule(int, "").parse("four")


def test_runs_from_before_the_rule_keep_the_dense_rate() -> None:
    old = Path(__file__).parents[1] / "formats" / "0.1.0" / "run" / "config.toml"
    assert "sparse_rate" not in old.read_text()
    config = read_run_config(old)
    assert config.train.sparse_rate == "same"
    assert 'sparse_rate = "same"' in config.to_toml()


def test_presets_train_as_they_were_chosen_whatever_is_the_default() -> None:
    """A preset of the paper with Adam is the paper's letter, at the paper's rate for all of the network."""
    config = Config().with_values(preset_values("enwik8-paper"))
    assert config.train.optimizer == "adam"
    assert config.method.letter
    assert (config.train.sparse_rate, config.train.whole_rate) == ("same", False)
