"""Block hashing by ai_dynamo_runtime, run by a Python that has it and nothing of Warmroute.

Reads lists of token ids as JSON from stdin, and writes the microseconds that each takes to stdout.
"""

import json
import sys
import timeit

from dynamo.llm import compute_block_hash_for_seq  # type: ignore[import-not-found]

BLOCK = 16


def main() -> None:
    """Measure and write the results."""
    found = []
    for ids in json.load(sys.stdin):
        number = max(1, 200_000 // len(ids))
        work = lambda ids=ids: compute_block_hash_for_seq(ids, BLOCK)  # noqa: E731
        found.append(min(timeit.repeat(work, number=number, repeat=5)) / number * 1e6)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
