"""What a person sees of a run.

live.py            the live table, lines of text, lines of JSON
status_text.py     a status in a few lines, for `atoll status`
top_table.py       every learner and shard in a row, for `atoll top` and the live table
machine_table.py   every machine of `atoll serve` in a row
run_summary.py     summary.json: what became of every token
curves.py          the curves of a run, from the lines that its processes write
curve_recorder.py  draws the curves while the run continues
trackers.py        TensorBoard's files, and Weights & Biases
plots.py           the pictures of a run: loss.png, goodput.png, tokens.png, rounds.png
timeline.py        what a tape shows over time: tokens, and the rounds one by one
"""
