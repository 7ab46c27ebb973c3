"""What is changed in the cluster: children, templates, pods of an old template.

applied      which children are applied, reverted, deleted or refused
restarts     which pods are deleted with their grace, and which shards wait
rollout      how a new template reaches running pods
drift        where a live object differs from what would be applied
ownership    whose an object is that has the name of a child
"""
