"""NumPyro's NUTS, and BlackJAX's NUTS, MALA and ChEES-HMC, on the log-density that PyMC gives JAX.

As `pm.sample` runs them (step sizes, metrics, jittered starts), but warm-up and draws apart and
compiled ahead, so that each has its own time: NumPyro's by one program, as NumPyro has it, those of
BlackJAX by two, as PyMC has them. Chains are one batch on a GPU; on a CPU each has a device, PyMC's
``chain_method="parallel"``. Each sampler here is a function that compiles for a job and returns
what runs it with a seed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks.figures import Run
from tests.benchmarks.samplers import Job

# Counted before PyMC's module, imported below where it is used, asks for a hundred.
N_DEVICES = jax.local_device_count()

DEFAULT_TUNE = 1000
MALA_STEPS = 10
"""Transitions for each recorded draw of MALA, as many as ours has in warm-up."""
MALA_ACCEPT = 0.574
CHEES_CHAINS = 256
CHEES_DRAWS = 100

OfSeed = Callable[[int], Run]
"""A run with a seed."""


Program = Callable[..., Any]


class Chains(NamedTuple):
    """A sampler of several chains at once: two functions that JAX can compile.

    Attributes
    ----------
    warm_up
        From keys and starts, one a chain, to states.
    draw
        From keys and states to the positions, gradients and divergences of all draws.
    """

    warm_up: Any
    draw: Any

    def compiled(self, keys: Sequence[Any], starts: Any) -> tuple[Program, Program]:
        """Both, for keys and starts like these."""
        warm_up = self.warm_up.lower(keys[0], starts).compile()
        states = jax.eval_shape(self.warm_up, keys[0], starts)
        return warm_up, self.draw.lower(keys[1], states).compile()


class OneLoop(NamedTuple):
    """A sampler of one chain whose transitions are the same in warm-up: compiled once for both.

    Attributes
    ----------
    begin
        From a key and a start to a state.
    step
        From a state to the next one, and what is kept of it.
    tune, draws
        Transitions of warm-up, and behind it.
    """

    begin: Program
    step: Program
    tune: int
    draws: int

    def compiled(self, keys: Sequence[Any], starts: Any) -> tuple[Program, Program]:
        """Warm-up and draws of all chains, for keys and starts like these."""
        begin = each_chain(self.begin)
        advance = each_chain(self._advance, in_axes=(0, None))
        states = jax.eval_shape(begin, keys[0], starts)
        first = begin.lower(keys[0], starts).compile()
        several = advance.lower(states, np.int32(0)).compile()

        def warm_up(key: Any, starts: Any) -> Any:
            return several(first(key, starts), np.int32(self.tune))[0]

        def draw(key: Any, states: Any) -> Any:
            del key  # the state has its own
            return several(states, np.int32(self.draws))[1]

        return warm_up, draw

    def _advance(self, state: Any, n: Any) -> tuple[Any, Any]:
        """By n transitions, and as many as there are draws of the last of them."""
        _, one = jax.eval_shape(self.step, state)
        empty = jax.tree.map(lambda a: jnp.zeros((self.draws, *a.shape), a.dtype), one)

        def body(i: Any, carry: Any) -> Any:
            state, kept = carry
            state, found = self.step(state)
            put = lambda rows, row: rows.at[i % self.draws].set(row)  # noqa: E731
            return state, jax.tree.map(put, kept, found)

        return jax.lax.fori_loop(0, n, body, (state, empty))


def numpyro_nuts(job: Job) -> OfSeed:
    """NumPyro's NUTS."""
    from numpyro.infer import NUTS

    def chains(logp: Callable[..., Any], constrain: Callable[..., Any], tune: int) -> OneLoop:
        kernel = NUTS(potential_fn=lambda x: -logp(x), target_accept_prob=0.8)

        def step(state: Any) -> tuple[Any, Any]:
            state = kernel.sample(state, (), {})
            return state, (constrain(state.z), state.num_steps, state.diverging)

        def begin(key: Any, x: Any) -> Any:
            return kernel.init(key, tune, x)

        return OneLoop(begin, step, tune, job.draws)

    return compile_chains(job, chains, job.chains)


def blackjax_nuts(job: Job) -> OfSeed:
    """BlackJAX's NUTS with its window adaptation."""
    import blackjax
    from blackjax.adaptation.base import get_filter_adapt_info_fn

    def chains(logp: Callable[..., Any], constrain: Callable[..., Any], tune: int) -> Chains:
        adapt = blackjax.window_adaptation(
            blackjax.nuts,
            logp,
            target_acceptance_rate=0.8,
            adaptation_info_fn=get_filter_adapt_info_fn(),
        )

        def warm_up(key: Any, x: Any) -> Any:
            (state, tuned), _ = adapt.run(key, x, num_steps=tune)
            return state, {n: tuned[n] for n in ("step_size", "inverse_mass_matrix")}

        def draw(key: Any, warmed: Any) -> Any:
            state, tuned = warmed
            kernel = blackjax.nuts(logp, **tuned)

            def step(state: Any, key: Any) -> tuple[Any, Any]:
                state, info = kernel.step(key, state)
                counts = info.num_integration_steps, info.is_divergent
                return state, (constrain(state.position), *counts)

            return jax.lax.scan(step, state, jax.random.split(key, job.draws))[1]

        return Chains(each_chain(warm_up), each_chain(draw))

    return compile_chains(job, chains, job.chains)


def blackjax_mala(job: Job) -> OfSeed:
    """BlackJAX's MALA, which has no metric; its step size by dual averaging."""
    import blackjax
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    def chains(logp: Callable[..., Any], constrain: Callable[..., Any], tune: int) -> Chains:
        kernel = blackjax.mala.build_kernel()
        begin, update, finish = dual_averaging_adaptation(MALA_ACCEPT)

        def warm_up(key: Any, x: Any) -> Any:
            def step(carry: Any, key: Any) -> tuple[Any, None]:
                state, adaptation = carry
                state, info = kernel(key, state, logp, jnp.exp(adaptation.log_step_size))
                rate = jnp.nan_to_num(info.acceptance_rate)
                return (state, update(adaptation, rate)), None

            first = blackjax.mala.init(x, logp), begin(0.1)
            keys = jax.random.split(key, tune * MALA_STEPS)
            (state, adaptation), _ = jax.lax.scan(step, first, keys)
            return state, finish(adaptation)

        def draw(key: Any, warmed: Any) -> Any:
            state, step_size = warmed

            def step(state: Any, key: Any) -> tuple[Any, Any]:
                keys = jax.random.split(key, MALA_STEPS)
                move = lambda s, k: (kernel(k, s, logp, step_size)[0], None)  # noqa: E731
                state, _ = jax.lax.scan(move, state, keys)
                return state, (constrain(state.position), jnp.array(MALA_STEPS), jnp.array(False))

            return jax.lax.scan(step, state, jax.random.split(key, job.draws))[1]

        return Chains(each_chain(warm_up), each_chain(draw))

    return compile_chains(job, chains, job.chains)


def blackjax_chees(job: Job) -> OfSeed:
    """BlackJAX's ChEES-HMC: many chains that warm up together, fewer draws of each."""
    import blackjax
    import optax
    from blackjax.adaptation.base import get_filter_adapt_info_fn

    def chains(logp: Callable[..., Any], constrain: Callable[..., Any], tune: int) -> Chains:
        adapt = blackjax.chees_adaptation(
            logp,
            CHEES_CHAINS,
            mass_matrix_estimation="diagonal",
            adaptation_info_fn=get_filter_adapt_info_fn(),
        )

        functions: dict[str, Any] = {}

        def warm_up(keys: Any, x: Any) -> Any:
            (state, tuned), _ = adapt.run(keys[0], x, 0.1, optax.adam(0.05), tune)
            # Functions are no results of a program.
            functions.update({n: v for n, v in tuned.items() if callable(v)})
            return state, {n: v for n, v in tuned.items() if not callable(v)}

        def draw(keys: Any, warmed: Any) -> Any:
            state, tuned = warmed
            kernel = blackjax.dhmc(logp, **tuned, **functions).step

            def step(state: Any, key: Any) -> tuple[Any, Any]:
                state, info = jax.vmap(kernel)(jax.random.split(key, CHEES_CHAINS), state)
                counts = info.num_integration_steps, info.is_divergent
                return state, (jax.vmap(constrain)(state.position), *counts)

            found = jax.lax.scan(step, state, jax.random.split(keys[0], CHEES_DRAWS))[1]
            return jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), found)

        return Chains(jax.jit(warm_up), jax.jit(draw))

    run = compile_chains(job, chains, CHEES_CHAINS)
    more = {"own_chains": CHEES_CHAINS, "own_draws": CHEES_DRAWS}
    return lambda seed: replace(run(seed), more=more)


def each_chain(function: Program, in_axes: Any = 0) -> Any:
    """The function of one chain, for all of them."""
    if N_DEVICES > 1:
        return jax.pmap(function, in_axes=in_axes)
    return jax.jit(jax.vmap(function, in_axes))


def compile_chains(job: Job, chains: Callable[..., Chains | OneLoop], n_chains: int) -> OfSeed:
    """Compile what a run needs.

    Parameters
    ----------
    chains
        Makes the sampler from the log-density and the map to the free variables, each of one
        state, and the draws of warm-up.
    """
    begun = time.perf_counter()
    logp, constrain = _functions(job)
    sampler = chains(logp, constrain, DEFAULT_TUNE if job.tune is None else job.tune)
    keys, starts = _keys(job.seed, n_chains), _starts(job, job.seed, n_chains)
    warm_up, draw = sampler.compiled(keys, starts)
    compiling = time.perf_counter() - begun

    def run(seed: int) -> Run:
        begun = time.perf_counter()
        keys, starts = _keys(seed, n_chains), _starts(job, seed, n_chains)
        states, warming = _timed(warm_up, keys[0], starts)
        (posterior, gradients, divergent), sampling = _timed(draw, keys[1], states)
        posterior = {n: np.asarray(v) for n, v in zip(job.names, posterior, strict=True)}
        return Run(
            compiling,
            warming,
            sampling,
            compiling + time.perf_counter() - begun,
            posterior,
            int(np.sum(np.asarray(gradients, dtype=np.int64))),
            int(np.sum(np.asarray(divergent))),
        )

    return run


def _keys(seed: int, n_chains: int) -> list[jax.Array]:
    """Of warm-up and of the draws, each of all chains."""
    keys = [jax.random.split(k, n_chains) for k in jax.random.split(jax.random.key(seed))]
    return [jax.random.key_data(k) for k in keys]


def _functions(job: Job) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Log-density, and free variables in the order of their names, of a list of value variables."""
    from pymc.sampling.jax import get_jaxified_graph, get_jaxified_logp

    model = job.model
    by_name = {variable.name: variable for variable in model.unobserved_value_vars}
    outputs = [by_name[name] for name in job.names]
    constrain: Any = get_jaxified_graph(inputs=model.value_vars, outputs=outputs)
    return get_jaxified_logp(model), lambda x: constrain(*x)


def _starts(job: Job, seed: int, n_chains: int) -> list[jax.Array]:
    """The model's initial point, jittered by up to 1 as PyMC does."""
    rng = np.random.default_rng(seed)
    point = job.model.initial_point()
    return [
        jnp.asarray(
            (value + rng.uniform(-1.0, 1.0, (n_chains, *np.shape(value)))).astype(
                np.asarray(value).dtype
            )
        )
        for value in (point[variable.name] for variable in job.model.value_vars)
    ]


def _timed(program: Any, *arguments: Any) -> tuple[Any, float]:
    begun = time.perf_counter()
    found = jax.block_until_ready(program(*arguments))
    return found, time.perf_counter() - begun
