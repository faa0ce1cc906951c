"""The first seed that showed each planted bug when it was last measured. Seeds move with the simulator: a test that starts
here searches on where it finds nothing."""

from collections.abc import Mapping

FIRST_SEEDS: Mapping[str, int] = {}
