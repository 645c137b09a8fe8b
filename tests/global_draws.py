"""A call of every function that draws from a global generator, for tests.

Each is called through the name that users use. Two names are bound before any thread runs, as
``from random import random`` does at the top of a module.
"""

# ruff: noqa: NPY002 - the global functions are the subject

from __future__ import annotations

import random
from collections.abc import Callable
from random import random as bound_early
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from numpy.random import permutation as numpy_bound_early
from torch import nn

__all__ = ["OF_NUMPY", "OF_RANDOM", "OF_TORCH", "bits", "bound_early", "numpy_bound_early"]


def bits(value: Any) -> Any:
    """A value as something that is equal only bit for bit."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return [bits(part) for part in value]
    return repr(value)


OF_RANDOM: dict[str, Callable[[], Any]] = {
    "betavariate": lambda: random.betavariate(0.5, 2),
    "choice": lambda: random.choice(range(1000)),
    "choices": lambda: random.choices(range(1000), k=5),
    "expovariate": lambda: random.expovariate(2),
    "gammavariate": lambda: random.gammavariate(0.7, 2),
    "gauss": lambda: random.gauss(0, 1),
    "getrandbits": lambda: random.getrandbits(100),
    "lognormvariate": lambda: random.lognormvariate(0, 1),
    "normalvariate": lambda: random.normalvariate(0, 1),
    "paretovariate": lambda: random.paretovariate(2),
    "randbytes": lambda: random.randbytes(7),
    "randint": lambda: random.randint(0, 10**9),
    "random": lambda: random.random(),
    "randrange": lambda: random.randrange(7, 10**9, 3),
    "sample": lambda: random.sample(range(1000), 10),
    "shuffle": lambda: shuffled(random.shuffle, list(range(50))),
    "triangular": lambda: random.triangular(0, 1, 0.2),
    "uniform": lambda: random.uniform(-1, 1),
    "vonmisesvariate": lambda: random.vonmisesvariate(1, 2),
    "weibullvariate": lambda: random.weibullvariate(1, 2),
    "bound early": lambda: bound_early(),
    "seed": lambda: (random.seed(3), random.random()),
    "getstate": lambda: (random.getstate()[1][:9], random.random()),
    "setstate": lambda: (random.setstate(random.Random(5).getstate()), random.random()),
}

OF_NUMPY: dict[str, Callable[[], Any]] = {
    "beta": lambda: np.random.beta(0.5, 2, 3),
    "binomial": lambda: np.random.binomial(10, 0.3, 3),
    "bytes": lambda: np.random.bytes(9),
    "chisquare": lambda: np.random.chisquare(3, 3),
    "choice": lambda: np.random.choice(1000, 5, replace=False),
    "dirichlet": lambda: np.random.dirichlet([1, 2, 3], 2),
    "exponential": lambda: np.random.exponential(2, 3),
    "f": lambda: np.random.f(2, 3, 3),
    "gamma": lambda: np.random.gamma(0.7, 2, 3),
    "geometric": lambda: np.random.geometric(0.1, 3),
    "gumbel": lambda: np.random.gumbel(0, 1, 3),
    "hypergeometric": lambda: np.random.hypergeometric(20, 10, 7, 3),
    "laplace": lambda: np.random.laplace(0, 1, 3),
    "logistic": lambda: np.random.logistic(0, 1, 3),
    "lognormal": lambda: np.random.lognormal(0, 1, 3),
    "logseries": lambda: np.random.logseries(0.6, 3),
    "multinomial": lambda: np.random.multinomial(10, [0.2, 0.8], 3),
    "multivariate_normal": lambda: np.random.multivariate_normal([0, 0], np.eye(2), 3),
    "negative_binomial": lambda: np.random.negative_binomial(3, 0.4, 3),
    "noncentral_chisquare": lambda: np.random.noncentral_chisquare(3, 2, 3),
    "noncentral_f": lambda: np.random.noncentral_f(3, 20, 2, 3),
    "normal": lambda: np.random.normal(0, 1, 3),
    "pareto": lambda: np.random.pareto(3, 3),
    "permutation": lambda: np.random.permutation(50),
    "poisson": lambda: np.random.poisson(4, 3),
    "power": lambda: np.random.power(3, 3),
    "rand": lambda: np.random.rand(3),
    "randint": lambda: np.random.randint(0, 10**9, 3),
    "randn": lambda: np.random.randn(3),
    "random": lambda: np.random.random(3),
    "random_sample": lambda: np.random.random_sample(3),
    "ranf": lambda: np.random.ranf(3),
    "rayleigh": lambda: np.random.rayleigh(1, 3),
    "sample": lambda: np.random.sample(3),
    "shuffle": lambda: shuffled(np.random.shuffle, np.arange(50)),
    "standard_cauchy": lambda: np.random.standard_cauchy(3),
    "standard_exponential": lambda: np.random.standard_exponential(3),
    "standard_gamma": lambda: np.random.standard_gamma(2, 3),
    "standard_normal": lambda: np.random.standard_normal(3),
    "standard_t": lambda: np.random.standard_t(3, 3),
    "triangular": lambda: np.random.triangular(0, 0.2, 1, 3),
    "uniform": lambda: np.random.uniform(-1, 1, 3),
    "vonmises": lambda: np.random.vonmises(1, 2, 3),
    "wald": lambda: np.random.wald(1, 2, 3),
    "weibull": lambda: np.random.weibull(2, 3),
    "zipf": lambda: np.random.zipf(2.5, 3),
    "bound early": lambda: numpy_bound_early(50),
    "one normal": lambda: np.random.randn(),  # of a pair; the other one is kept for later
    "seed": lambda: (np.random.seed([3, 4]), np.random.rand()),
    "get_state": lambda: list(np.random.get_state()),
    "set_state": lambda: (np.random.set_state(np.random.RandomState(5).get_state()),),
}


sobol: Any = torch.quasirandom.SobolEngine


def x() -> torch.Tensor:
    """Some numbers in (0, 1)."""
    return torch.linspace(0.1, 0.9, 120).view(2, 3, 4, 5)


def _scripted() -> Any:
    """A function whose draws Python does not see."""
    return torch.jit.CompilationUnit(
        "def noisy(x):\n    return torch.rand_like(x) + torch.randn([5])\n"
    ).noisy


OF_TORCH: dict[str, Callable[[], Any]] = {
    "rand": lambda: torch.rand(3, 4),
    "rand out": lambda: torch.rand(3, out=torch.empty(3)),
    "rand double": lambda: torch.rand(3, dtype=torch.float64),
    "randn": lambda: torch.randn(33),
    "randn small": lambda: torch.randn(3),
    "randint": lambda: torch.randint(10, (7,)),
    "randint low": lambda: torch.randint(3, 1 << 40, (7,)),
    "randperm": lambda: torch.randperm(100),
    "normal": lambda: torch.normal(0.0, 1.0, (5,)),
    "normal tensors": lambda: torch.normal(x(), x()),
    "normal mean": lambda: torch.normal(x(), 2.0),
    "normal std": lambda: torch.normal(1.0, x()),
    "bernoulli": lambda: torch.bernoulli(x()),
    "bernoulli p": lambda: torch.bernoulli(x(), 0.3),
    "multinomial": lambda: torch.multinomial(x().flatten(), 5),
    "multinomial again": lambda: torch.multinomial(x().flatten(), 5, replacement=True),
    "poisson": lambda: torch.poisson(x() * 9),
    "binomial": lambda: torch.binomial(torch.full((2, 3, 4, 5), 9.0), x()),
    "rand_like": lambda: torch.rand_like(x()),
    "randn_like": lambda: torch.randn_like(x()),
    "randint_like": lambda: torch.randint_like(x(), 100),
    "randint_like low": lambda: torch.randint_like(x(), 5, 100),
    "uniform_": lambda: x().uniform_(2, 3),
    "normal_": lambda: x().normal_(2, 3),
    "random_": lambda: torch.zeros(9, dtype=torch.int64).random_(),
    "random_ to": lambda: x().random_(100),
    "random_ from": lambda: x().random_(5, 100),
    "bernoulli_": lambda: x().bernoulli_(0.3),
    "bernoulli_ of": lambda: x().bernoulli_(x()),
    "exponential_": lambda: x().exponential_(2),
    "geometric_": lambda: x().geometric_(0.3),
    "cauchy_": lambda: x().cauchy_(),
    "log_normal_": lambda: x().log_normal_(),
    "standard_gamma": lambda: torch._standard_gamma(x()),
    "sample_dirichlet": lambda: torch._sample_dirichlet(x()),
    "Beta": lambda: torch.distributions.Beta(0.4, 0.4).sample(),
    "Categorical": lambda: torch.distributions.Categorical(x()).sample(),  # type: ignore[no-untyped-call]
    "Gamma": lambda: torch.distributions.Gamma(2.0, 1.0).sample((3,)),
    "Normal": lambda: torch.distributions.Normal(0.0, 1.0).rsample((3,)),
    "dropout": lambda: F.dropout(x(), 0.4),
    "dropout inference": lambda: torch.inference_mode()(F.dropout)(x(), 0.4),
    "dropout1d": lambda: F.dropout1d(x()[0], 0.4),
    "dropout2d": lambda: F.dropout2d(x(), 0.4),
    "alpha_dropout": lambda: F.alpha_dropout(x(), 0.4, training=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(x(), 0.4, training=True),
    "nn.Dropout": lambda: nn.Dropout(0.3)(x()),
    "rrelu": lambda: F.rrelu(x() - 0.5, training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(x()),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(x(), 2, 2),
    "attention": lambda: F.scaled_dot_product_attention(x(), x(), x(), dropout_p=0.3),
    "attention without": lambda: F.scaled_dot_product_attention(x(), x(), x()),
    "trunc_normal_": lambda: nn.init.trunc_normal_(x()),
    "kaiming_uniform_": lambda: nn.init.kaiming_uniform_(x()),
    "Linear": lambda: nn.Linear(3, 3).weight,
    "svd_lowrank": lambda: torch.svd_lowrank(x()[0, 0], 2),
    "SobolEngine": lambda: sobol(2, scramble=True).draw(3),
    "TorchScript": lambda: _scripted()(x()),
    "default_generator": lambda: torch.rand(3, generator=torch.default_generator),
    "thread_safe_generator": lambda: torch.rand(3, generator=safe_generator()),
    "manual_seed": lambda: (torch.manual_seed(5).initial_seed(), torch.rand(3)),
    "random.manual_seed": lambda: (torch.random.manual_seed(5).initial_seed(), torch.rand(3)),
    "initial_seed": lambda: torch.initial_seed(),
    "get_rng_state": lambda: torch.get_rng_state(),
    "set_rng_state": lambda: torch.set_rng_state(torch.Generator().manual_seed(3).get_state()),
    "fork_rng": lambda: forked(),
}


def shuffled(shuffle: Callable[[Any], None], values: Any) -> Any:
    """Shuffle in place and return."""
    shuffle(values)
    return values


def safe_generator() -> torch.Generator | None:
    """What transforms that care for threads ask torch for."""
    ask = getattr(torch.random, "thread_safe_generator", None)
    return ask() if ask is not None else None


def forked() -> list[torch.Tensor]:
    """Draw, with what was drawn inside forgotten."""
    with torch.random.fork_rng():
        inner = torch.rand(3)
    return [inner, torch.rand(3)]
