"""The hot path: claim a batch, run one asyncio task per job, settle a batch, all three overlapping.

What is clever about speed lives here and nowhere else, with its measured gain beside it.
"""
