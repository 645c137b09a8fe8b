"""The order of an epoch, by formula.

This is the only room that knows epochs, ranks, permutations, positions and seeds. All of it is
plain integers and NumPy; no order of an epoch is ever held in memory.

* :class:`SampleKey` - (seed, epoch, index, draw): where all randomness of a sample comes from;
* :class:`Permutation` - a shuffled order as a formula;
* :class:`Sampling` - which sample stands at which position: :class:`Sequential`,
  :class:`Shuffled`, :class:`WeightedSampling`, :class:`BalancedSampling`;
* :class:`EpochOrder` - the batches of one rank in one epoch, each a :class:`Batch`;
* :class:`LoaderState` - where a loader stands.
"""

from sharedds.order.epoch import Batch, EpochOrder, Sampling, Sequential, Shuffled
from sharedds.order.keys import (
    SampleKey,
    current_generator,
    current_key,
    current_keys,
    current_turn,
    keys_in_turn,
    uniforms_in_hand,
    using_key,
    using_keys,
)
from sharedds.order.permutation import Permutation
from sharedds.order.sampling import BalancedSampling, WeightedSampling
from sharedds.order.state import LoaderState

__all__ = [
    "BalancedSampling",
    "Batch",
    "EpochOrder",
    "LoaderState",
    "Permutation",
    "SampleKey",
    "Sampling",
    "Sequential",
    "Shuffled",
    "WeightedSampling",
    "current_generator",
    "current_key",
    "current_keys",
    "current_turn",
    "keys_in_turn",
    "uniforms_in_hand",
    "using_key",
    "using_keys",
]
