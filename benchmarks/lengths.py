"""Random lengths of prompts, answers and user messages."""

from random import Random


def around(mean: int, chance: Random) -> int:
    """Draw an integer within a third of the mean."""
    return max(1, chance.randint(mean - mean // 3, mean + mean // 3))


def skewed(mean: int, chance: Random, *, least: int) -> int:
    """Draw a length as human texts have: with a long tail, cut at eight times the mean."""
    drawn = chance.lognormvariate(0.0, 1.0) / 1.6487 * mean  # e^0.5 is the mean of lognormal(0, 1)
    return max(least, min(8 * mean, round(drawn)))
