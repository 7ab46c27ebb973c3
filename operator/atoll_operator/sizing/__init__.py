"""What a job needs of links and machines, by the formulas of docs/sizing.md; pure.

May import the API alone. Its files:

    needs.py      traffic over each border, memory, processors, disks; what will not hold
"""
