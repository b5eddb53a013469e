"""Lengths drawn by chance: of prompts, answers and what people say."""

from random import Random


def around(mean: int, chance: Random) -> int:
    """Draw a whole number within a third of the mean."""
    return max(1, chance.randint(mean - mean // 3, mean + mean // 3))


def skewed(mean: int, chance: Random, *, least: int) -> int:
    """Draw lengths as people's are: a long tail, cut at eight times the mean."""
    drawn = chance.lognormvariate(0.0, 1.0) / 1.6487 * mean  # e^0.5 is the mean of the first
    return max(least, min(8 * mean, round(drawn)))
