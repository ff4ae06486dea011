"""The trainer and what it says of itself."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from topkast.methods import TopKAST
from topkast.methods.named import METHODS
from topkast.store.record import as_json
from topkast.train import events
from topkast.train.config import Config
from topkast.train.display import Lines, mean_of
from topkast.train.resolve import make_method, make_task, resolve
from topkast.train.trainer import NotFinite, Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def make(path: Path, **values: dict[str, object]) -> Trainer:
    small = {"model": {"width": 32, "depth": 1, "heads": 2, "window": 16}}
    train = {"steps": 12, "batch": 4, "threads": 1, **values.pop("train", {})}
    config = Config().with_values({"data": {"data": str(path)}, **small, "train": train, **values})
    task = make_task(config)
    config = resolve(config, task)
    return Trainer(config, task, make_method(config))


def _often(method: str) -> dict[str, object]:
    """A method that refreshes every other step, if it refreshes."""
    takes = METHODS[method].takes
    return {"method": method, **({"refresh_every": 2} if "refresh_every" in takes else {})}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_tells(method: str, text_file: Path) -> None:
    trainer = make(text_file, method=_often(method))
    lines = [events.start(trainer, method)]
    losses = [trainer.take_step() for _ in range(12)]
    flops = events.count_flops(trainer)
    lines.append(
        events.progress(trainer, losses=losses, quality=trainer.quality(), seconds=1.0, flops=flops.total)
    )
    lines.append(events.end(trainer, seconds_per_step=0.1, bytes_held=events.held(trainer), stopped=None))
    again = json.loads(json.dumps([as_json(line) for line in lines]))
    assert again[0]["parameters"]["used"] <= again[0]["parameters"]["dense"]
    assert (method == "dense") == (not again[1]["layers"])
    assert again[2]["bytes"]["sparse"] > 0
    if method in ("topkast", "static", "dense"):  # others change too much in so few steps
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("method", ["l0", "variational-dropout"])
def test_the_complexity_of_gates_reaches_the_loss_and_gates_do_not_decay(
    method: str, text_file: Path
) -> None:
    trainer = make(text_file, method={"method": method, "penalty": 0.5}, train={"weight_decay": 0.1})
    loss, objective = trainer._objective(0, trainer.batches)
    assert trainer.sparse is not None
    torch.testing.assert_close(objective - loss, 0.5 * trainer.sparse.penalty(), rtol=1e-4, atol=0)
    decays = {
        id(p): group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]
    }
    for weight in trainer.sparse.weights.values():
        assert weight.companion is not None
        assert [decays[id(p)] for p in weight.companion.learned()] == [0.0]
    assert 0.1 in decays.values()
    assert make(text_file, method={"method": method}).config.method.penalty == 1e-5


def test_the_same_configuration_gives_the_same_run(text_file: Path) -> None:
    runs = [[make(text_file).take_step() for _ in range(1)] for _ in range(2)]
    first, second = make(text_file), make(text_file)
    assert [first.take_step() for _ in range(6)] == [second.take_step() for _ in range(6)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("method", ["topkast", "rigl", "dense"])
def test_counting_bytes_leaves_no_trace(method: str, text_file: Path) -> None:
    plain, counted = (make(text_file, method=_often(method)) for _ in range(2))
    for _ in range(6):
        events.held(counted)
        assert plain.take_step() == counted.take_step()


def test_a_loss_that_is_not_finite_stops_before_the_update(text_file: Path) -> None:
    trainer = make(text_file)
    trainer.take_step()
    with torch.no_grad():
        trainer.model.get_parameter("head.bias")[0] = float("nan")
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    with pytest.raises(NotFinite, match="the loss of step 2 is nan"):
        trainer.take_step()
    after = trainer.model.state_dict()
    assert all(torch.equal(after[k].nan_to_num(), v.nan_to_num()) for k, v in before.items())


def test_a_gradient_that_is_not_finite_names_where(text_file: Path) -> None:
    trainer = make(text_file)
    trainer.model.get_submodule("norm").register_full_backward_hook(
        lambda *_: (torch.full((4, 16, 32), float("inf")),)
    )
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    with pytest.raises(NotFinite, match=r"the gradient of step 1 is not finite, first in \w+"):
        trainer.take_step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"hidden": [4]}}, r"model.hidden is not taken by text; of the network it takes"),
        ({"model": {"heads": 3}}, r"--heads must divide --width \(256\), got 3"),
        ({"method": {"method": "static", "backward_sparsity": 0.5}}, r"static has no `backward_sparsity`"),
        ({"method": {"method": "rigl", "t_end": 900}, "train": {"steps": 500}}, r"RigL ends at step 900, beyond the run of 500"),
        ({"method": {"forward_sparsity": 1.5}}, r"`forward_sparsity` must be in \[0, 1\), got 1.5"),
        ({"method": {"penalty_form": "decoupled", "penalty_power": 1}}, r"penalty_power must be 2 with penalty_form 'decoupled', .* got 1"),
        ({"train": {"optimizer": "sgd", "beta2": 0.9}}, r"train.beta2 is for adam and adamw, got 0.9 with sgd: leave it out"),
        ({"train": {"optimizer": "sgd", "eps": 0.1}}, r"train.eps is for adam and adamw"),
        ({"train": {"beta2": 1.0}}, r"train.beta2 must be below 1, got 1.0"),
        ({"model": {"window": 100_000}}, r"fewer than one window of 100000"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    values: dict[str, object], message: str, text_file: Path
) -> None:
    config = Config().with_values({"data": {"data": str(text_file)}, **values})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=message):
        make_method(resolve(config, make_task(config)))


def test_bfloat16_and_implicit_reservoirs_train(text_file: Path) -> None:
    for values in (
        {"train": {"precision": "bfloat16"}},
        {"method": {"reservoir": "implicit", "keep_dense": ["embeddings"]}},
    ):
        trainer = make(text_file, **values)  # pyright: ignore[reportArgumentType]
        losses = [trainer.take_step() for _ in range(12)]
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("method", ["topkast", "static", "rigl"])
def test_sparse_layers_have_their_own_rate(method: str, text_file: Path) -> None:
    trainer = make(
        text_file,
        method=_often(method),
        train={"sparse_rate": "sqrt", "same_rate": ["embedding"], "lr": 0.01},
    )
    assert trainer.sparse is not None
    factors = {}
    for name, weight in trainer.sparse.weights.items():
        (group,) = (g for g in trainer.optimizer.param_groups if any(p is weight.values for p in g["params"]))
        factors[name] = group["initial_lr"] / 0.01
    assert factors.pop("embedding") == 1.0
    assert list(factors.values()) == pytest.approx([10**0.5] * len(factors), rel=0.01)
    trainer.take_step()
    event = events.progress(trainer, losses=[0.0], quality=0.0, seconds=0.0, flops=0.0)
    assert event.lr == trainer.schedule.get_last_lr()[0]  # of the dense rest


def test_a_decoupled_penalty_is_the_methods_and_not_in_the_loss(text_file: Path) -> None:
    trainer = make(text_file, method={"penalty_form": "decoupled", "penalty": 0.1})
    assert isinstance(trainer.method, TopKAST)
    assert trainer.method.decay == 0.1
    assert trainer._penalty() is None
    loss, objective = trainer._objective(0, trainer.batches)
    assert loss is objective
    trainer.take_step()
    gradient = make(text_file, method={"penalty": 0.1, "penalty_form": "gradient"})
    assert isinstance(gradient.method, TopKAST)
    assert gradient.method.decay == 0
    assert gradient._penalty() is not None
    static = make(text_file, method={"penalty_form": "decoupled", "method": "static"})
    static.take_step()


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_has_its_beta2_and_eps(optimizer: str, text_file: Path) -> None:
    usual = make(text_file, train={"optimizer": optimizer})
    assert usual.optimizer.defaults["betas"] == torch.optim.Adam([torch.zeros(1)]).defaults["betas"]
    assert usual.optimizer.defaults["eps"] == torch.optim.Adam([torch.zeros(1)]).defaults["eps"]
    assert "beta2 = 0.999" in usual.config.to_toml()
    other = make(text_file, train={"optimizer": optimizer, "beta2": 0.95, "eps": 0.1})
    assert {(*g["betas"], g["eps"]) for g in other.optimizer.param_groups} == {(0.9, 0.95, 0.1)}
    other.take_step()


@pytest.mark.parametrize("method", ["topkast", "static"])
def test_sparse_layers_start_as_they_are_told_and_embeddings_do_not(method: str, text_file: Path) -> None:
    usual, other = (
        make(text_file, method={"method": method, **more})
        for more in ({}, {"init": "keep_variance:lecun_normal"})
    )
    assert usual.sparse is not None
    assert other.sparse is not None
    for name, weight in other.sparse.weights.items():
        if name == "embedding":
            assert torch.equal(weight.theta(), usual.sparse.weights[name].theta())
        else:
            kept = float(weight.alpha().double().square().sum())
            assert kept == pytest.approx(weight.shape[0], rel=0.01), name
    other.take_step()


def test_a_rate_for_a_layer_that_is_not_there_is_refused(text_file: Path) -> None:
    with pytest.raises(
        ValueError, match="train.same_rate: `factors` names 'embeding', which matches no sparse layer"
    ):
        make(text_file, train={"same_rate": ["embeding"]})


def test_lines_say_what_happened(text_file: Path) -> None:
    out = io.StringIO()
    trainer = make(text_file)
    display = Lines(out)
    display.begin("Top-KAST", events.start(trainer, "x"), 0)
    loss = trainer.take_step()
    event = events.progress(trainer, losses=[loss], quality=trainer.quality(), seconds=0.5, flops=1.0)
    display.progress(event)
    assert mean_of(event, "changed") is not None
    text = out.getvalue()
    assert "Top-KAST: 12 steps" in text
    assert "bits per byte" in text
    assert f"{loss:.4f}" in text
    assert "500.0" in text  # ms for the one step


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_what_is_not_said_suits_the_optimizer(text_file: Path, optimizer: str) -> None:
    is_adam = optimizer != "sgd"
    trainer = make(text_file, train={"optimizer": optimizer})
    assert isinstance(trainer.method, TopKAST)
    assert trainer.method.exploration_rate == (0.1 if is_adam else 1.0)
    assert trainer.method.decay == (0.3 if is_adam else 0.0)
    assert trainer.config.train.sparse_rate == (0.75 if is_adam else "same")
    assert trainer.config.train.whole_rate == is_adam
    assert trainer.config.method.penalty == (0.3 if is_adam else 1e-4)
    letter = make(text_file, method={"letter": True}, train={"optimizer": optimizer})
    assert isinstance(letter.method, TopKAST)
    assert (letter.method.exploration_rate, letter.method.decay, letter.config.method.penalty) == (
        1.0,
        0.0,
        1e-4,
    )


def test_what_is_said_wins_over_what_suits_the_optimizer(text_file: Path) -> None:
    said = {"exploration_rate": 0.5, "penalty": 0.02}
    trainer = make(text_file, method=said, train={"sparse_rate": "same"})
    assert isinstance(trainer.method, TopKAST)
    assert (trainer.method.exploration_rate, trainer.method.decay) == (0.5, 0.02)
    assert trainer.config.train.sparse_rate == "same"
    first_power = make(text_file, method={"penalty_power": 1})  # which cannot be decoupled
    assert first_power.config.method.penalty_form == "gradient"


@pytest.mark.parametrize(("clip", "clip_rms"), [(0.0, 1e-4), (1e-3, 1.0), (1e-3, 1e-7), (0.0, 0.0)])
def test_gradients_are_clipped_by_norm_and_by_root_mean_square(
    text_file: Path, clip: float, clip_rms: float
) -> None:
    trainer = make(text_file, train={"clip": clip, "clip_rms": clip_rms})
    seen: list[torch.Tensor] = []

    def note(*_: object) -> None:
        seen.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]))

    trainer.optimizer.register_step_pre_hook(note)
    trainer.take_step()
    gradient = seen[0]
    norm, rms = float(gradient.norm()), float(gradient.square().mean().sqrt())
    limits = [limit / value for limit, value in ((clip, norm), (clip_rms, rms)) if limit]
    # The tighter of the two is reached; without any the gradient is as it came.
    assert min(limits, default=1.0) == pytest.approx(1.0, rel=1e-3)
    assert norm > 1e-2 or limits
