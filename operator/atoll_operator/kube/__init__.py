"""The Kubernetes executor: a manifest becomes pods, and the cluster's state its status.

Decisions (`pods`, `children`, `placement`, `rollout`, `phase`, `status`) are pure and take
values; `reconcile` runs one pass; the edges are `api` (Kubernetes), `syncers` (gRPC), `reflector`
(watches of nodes and Leases), `handlers` (kopf) and `queue` (the clock). What the manifest means
belongs in `atoll_operator.api.spec`, what is said of a job under either executor in `.conditions`,
processes of one machine in `.local`.
"""
