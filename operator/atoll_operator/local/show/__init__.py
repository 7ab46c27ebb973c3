"""What a person sees of a run.

live.py            the live table, lines of text, lines of JSON
status_text.py     a status in a few lines, for `atoll status`
top_table.py       every learner and shard in a row, for `atoll top` and the live table
run_summary.py     summary.json: what became of every token
curves.py          the curves of a run, from the lines that its processes write
curve_recorder.py  draws the curves while the run continues
trackers.py        TensorBoard's files, and Weights & Biases
plots.py           loss.png and goodput.png
"""
