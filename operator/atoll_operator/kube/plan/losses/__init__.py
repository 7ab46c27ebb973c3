"""Which pods, nodes and sessions are lost, and what takes their place.

suspects     learners that crash again and again where they are, or hang
exclusions   the nodes that templates exclude
replacements which pods are made again elsewhere
sessions     whose session is dead, and who owns a slot (SetOwner)
nodes        lost nodes and storms
"""
