"""The hot path: claim a batch, run one asyncio task per job, settle a batch. All three overlap.

Optimisations belong in this package and nowhere else. A comment beside each gives its measured gain.
"""
