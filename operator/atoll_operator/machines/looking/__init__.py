"""A laptop with a token to look at a job of `atoll serve`, or to edit it.

served.py  the job from afar: copies of its files, its shards, its model, and its edits
kept.py    the token of each server that this user has looked at
"""
