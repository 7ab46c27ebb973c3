"""`atoll plan`: what a job needs of networks and machines, before the first step.

command.py     the verb and its flags
flags.py       the text of a flag becomes a number, a link or a price
model_size.py  parameters of a model's files, or of a function that builds the model
tables.py      the plan as text
"""
