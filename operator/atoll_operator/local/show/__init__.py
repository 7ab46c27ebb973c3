"""What a person sees of a run.

live.py            the live table, with machines (`atoll top`); lines of text and JSON
status_text.py     a status in a few lines, for `atoll status`
run_summary.py     summary.json: what became of every token
curves.py          curves from the lines of processes, while a run continues; TensorBoard
plots.py           the pictures of a run: loss.png, goodput.png, rounds.png
"""
