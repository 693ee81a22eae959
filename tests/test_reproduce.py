import pytest

from tenfold.errors import TenfoldError
from tenfold.params import describe
from tenfold.reproduce import flat_names, parse_overrides


def test_every_key_has_a_flat_name_of_its_own_that_mlflow_can_format() -> None:
    names = flat_names()
    assert sorted(names.values()) == sorted(describe())
    assert all(name.isidentifier() for name in names)
    assert names["max_epochs"] == "train.max_epochs"
    assert names["tune_batch_size_max"] == "tune.batch_size.max"


def test_both_ways_to_give_a_value() -> None:
    given = ["--learning_rate", "1e-3", "--max-epochs=3", "--optimizer_betas", "[0.8, 0.9]"]
    assert parse_overrides(given) == {
        "train.learning_rate": "1e-3",
        "train.max_epochs": "3",
        "train.optimizer.betas": "[0.8, 0.9]",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--lerning_rate", "1"], "--lerning_rate: no such setting; did you mean --learning_rate?"),
        (["max_epochs", "1"], "max_epochs: no such setting; did you mean --max_epochs?"),
        (["--max_epochs"], "--max_epochs: a value is missing"),
        (["--seed", "1", "--seed=2"], "--seed=2: given twice"),
    ],
)
def test_what_is_refused(given: list[str], message: str) -> None:
    with pytest.raises(TenfoldError) as raised:
        parse_overrides(given)
    assert str(raised.value).startswith(message)
