"""The table of what conditions can say: every reason with its status, meaning and remedy.

A reason without an entry cannot be used. The order of the types is that of a status.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from atoll_protos.exits import EXITS

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
WARNINGS: Final = frozenset({"Degraded", "Failed", "Stalled"})
SUMMARIES: Final = frozenset({"Ready", "Stalled"})  # they repeat what other conditions say
STALLED_SECONDS: Final = 120.0
STALLED_TICKS: Final = 5.0  # that a step may take longer than it did, before it counts as stalled
STALLED_SECONDS_MAX: Final = 3600.0
STORE_LOST: Final = "StoreLost"
NODE_LOSS_HELD: Final = "NodeLossHeld"  # of Degraded


@dataclass(frozen=True, slots=True)
class ConditionReason:
    """One thing that a condition can say. `remedy` is empty where there is nothing to do."""

    type: str
    status: str
    reason: str
    meaning: str
    remedy: str = ""


TABLE = f"""
Accepted True
  Valid: the manifest is right and supported; the message has each link or overlap that will not
      hold by the manifest's own numbers
    > nothing; where the message names a link or an overlap, take a longer period, a shorter number
      format or more overlap; `atoll plan` shows what holds
  NotServed: the manifest is right, and this install serves none of its regions: nothing is made
    > nothing, if the job's regions are in other clusters; else compare spec.regions with the
      chart's value regions
Accepted False
  Invalid: a field is wrong
    > fix the field that the message names; `atoll validate` finds the same
  NotSupported: this version cannot do what a field asks for
    > change or remove the field that the message names
  TwoHomes: the job's syncer seems to run in another cluster, and this install serves its region,
    too; what runs here stays as it is, and no second syncer is made
    > name the regions of this cluster in the chart's value `regions`, best in a values file for
      each cluster
  EndpointsMissing: the syncer runs in another cluster, and spec.syncer.endpoints does not say
    where its shards are
    > give spec.syncer.expose a type in that cluster, and copy its status.syncer.endpoints into
      spec.syncer.endpoints here
  TooManyChildren: the job, its namespace or the install would have more children than the chart's
      value limits allows; what runs continues, with the manifest that was accepted last
    > follow the message: ask for less, delete jobs that are over, or have the limit raised; it is
      tried again when there is room
  TemplateRefused: the API server finds a pod template wrong; what runs stays as it is, and of a
    new job nothing is made
    > fix the template that the message names; the edit is tried at once
  ChildrenRefused: the API server refuses objects that the job needs, or objects of others have
    their names; what runs continues
    > fix what the message names (a quota, an admission rule, a name) or take the edit back; it is
      tried again at least once a minute
  CredentialsMissing: the syncer runs in another cluster, and this one has no certificates with
    which its learners could join; what runs continues, and no pod can start without
    > run the command that the message names, with the kubeconfig of the syncer's cluster, and
      apply what it prints in this cluster
  CredentialsRefused: the certificates that were brought into this cluster cannot be used: another
    region's, another job's, those of a former run, expired ones, or the shards do not take them
    > bring new ones by the command that the message names
  CertificatesMissing: certificates of the job are not there: the Secret of
    spec.syncer.tls.caSecret is missing or cannot sign, or the operator cannot read Secrets; what
    runs continues, and no pod can start without
    > follow the message: see who fills that Secret, or let the operator read Secrets; it is looked
      at again every few seconds
SyncerReady True
  Serving: every shard serves
SyncerReady False
  Starting: a shard starts, waits for its first values, or reads or restores its state
    > wait; if it stays, see the log of the shard that the message names
  PodsNotReady: a shard's pod does not run
    > see the pod that the message names: its image, volume, resources and log
SyncerReady Unknown
  NoAnswer: a shard does not answer
    > see the pod and the log of that shard; if its pod is Ready, let the operator's namespace
      reach port 7700 through NetworkPolicies and the service mesh
  NotRead: the operator cannot read the job's objects from the API server; what runs continues
    > see the message, and the permissions of the operator
Progressing True
  Training: the job's step moves; the message counts the learners, and says where more than 10% of
    what is trained comes too late for a merge, or more than half is overwritten while values are on
    their way, and is lost
    > where the message names a setting: raise it in a new job, or give the shards more CPU in
      spec.syncer.template
  LengthDiffers: the job's step moves, and a shard does not know the present spec.steps or
    spec.tokens yet
    > wait about a minute; if it stays, see SyncerReady. A shard that has ended keeps its length
  Exporting: the training is over and the model is being written
  Evaluating: the model is written and the last evaluation runs
  LearnersFinished: every learner has the final values and has ended, and shard 0 cannot be asked
    whether the model is written
    > let the operator reach the shards (see SyncerReady); Complete follows
Progressing False
  WaitingForSyncer: a shard does not serve
    > see SyncerReady
  WaitingForLearners: fewer learners than the quorum are in training
    > see the pods that the message names: events, logs, capacity of their region
  LearnersStarting: fewer learners than the quorum are in training, because the others start: for
    the first time, after a resume, or again with a new template
    > wait; after 10 minutes it is WaitingForLearners
  Stalled: the step has not moved for {STALLED_SECONDS:.0f} s, or {STALLED_TICKS:.0f} times what
    a step takes, if that is longer
    > see the learners' logs
  SyncerLost: in a cluster without the syncer: no shard has answered for failure.syncerLostSeconds,
    and the learners here are scaled to 0; they come back by themselves when one answers
    > see the job in the syncer's cluster, spec.syncer.endpoints and the way there; if the job is
      gone there, delete it here
Progressing Unknown
  SyncerSilent: shard 0 does not answer
    > see the pod and the log of shard 0
  NotRead as at SyncerReady
Degraded True
  {NODE_LOSS_HELD}: so many nodes were lost at once that nothing is replaced
    > bring the nodes back, delete them, or annotate the job with `atoll.dev/release-hold`
  PodsExited: a learner or the evaluator ended with a permanent exit code; the kubelet starts it
    again with back-off (`atoll run` has given it up), and the others train on
    > fix what the message names and apply the job again: an edit of its template, image or
      arguments restarts the pod
  PodsMissing: a pod waits, its node is lost, or its process ended and has not come back
    > nothing while replacements come; else give the region more capacity
  SyncerLost as at Progressing
  OtherManifest: the manifest here differs from that of the syncer's cluster in what must be equal,
    or the endpoints lead to other shards; the message names both values. The learners here do not
    start, the others train on
    > delete the job in this cluster and apply the manifest of the syncer's cluster
  HomeFailed: the job has failed in the cluster where the syncer runs; the learners here are scaled
    to 0
    > see Failed in that cluster; when it tries again the learners here come back
  SlotHeldElsewhere: a learner's pod waits for its slot, which a process of another cluster has:
    two installs serve one region
    > give each region to one install alone (the chart's value `regions`), and delete the pods of
      the other
  StoreTrouble: a shard cannot write to its volume and tries again; nothing is lost meanwhile
    > make room on the volume that the message names, or repair it
  OffersRefused: nothing of a learner is merged at present, mostly because its model has values
    that are not finite, or changes far more than the others (spec.sync.normLimit): it has diverged
    > lower its learning rate, clip gradients or look at its data; if it stays, restart it: it
      begins again with the job's values and a new optimizer
  SameData: learners had equal losses in their first steps, bit for bit, so they train on the same
    data: what one has learned, the others only repeat
    > choose each batch by job.index of `job = atoll.job()` and by learner.cursor, and begin again
  TokensAboveLimit: a learner reports more tokens for a step than regions[].tokensPerStep of its
    region: what is above is not counted, nor does it weigh
    > see what its script gives as tokens= to step(), or raise that field, without a restart
  OneLearnerLeads: one of three or more learners had over half of the weight of ten merges in a
    row: the model is mostly its own. Weights are tokens times tokens, by steps
    > where its hardware is not so much faster, see what its script gives as tokens= to step();
      regions[].tokensPerStep limits what counts
  CredentialsMissing as at Accepted
  CredentialsRefused as at Accepted
  CertificatesMissing as at Accepted
  CredentialsExpire: two thirds of the life of the certificates that were brought into this cluster
    are over, or five sixths of that of spec.syncer.tls.caSecret, or those of a learner that trains
    have expired. It trains on with the connections that it has
    > bring new ones by the command that the message names, or let the issuer of that Secret renew
      it; no pod restarts. Where the Secret has
      new ones already, see whether the kubelet of the node runs, or delete the pod
  LearnersMissing: some learners are lost, crashed or hang, or have been starting for 10 minutes
    > see their pods and logs, those of another cluster's regions there
  OtherCounts: spec.steps, or the learners of a region, are others in another cluster; those of the
    syncer's cluster count, and other learners are shut out after 90 s
    > apply the same manifest in every cluster; after an edit there wait about a minute
  StaleEndpoints: spec.syncer.endpoints leads to ports that no shard of this job has any more, as
    after the job was deleted and made again
    > copy status.syncer.endpoints into the manifest and apply it in every cluster
  TransportDiffers: the run talks in plain text and spec.syncer.tls asks for TLS, or the reverse:
    it continues as it began
    > suspend the job and resume it when its pods have ended; with Ephemeral storage start another
      job
Degraded False
  AllWell: everything that the job asks for is there
  LearnersStarting: learners start and are not in training yet; nothing is lost
Degraded Unknown
  SyncerSilent: shard 0 does not answer
    > see the pod and the log of shard 0
  NotRead as at SyncerReady
Suspended True
  Suspended: nothing runs, the run is kept
    > `spec.suspend: false` continues it, in a folder `atoll resume`; a run that was interrupted or
      killed goes on with the command that the message names
  SuspendedElsewhere: the job is suspended in the cluster where the syncer runs
    > resume it there; the learners here come back
Suspended False
  Suspending: learners' pods are still ending
  NotSuspended: the job is not suspended
Complete True
  Trained: the training is over
    > `.status.exportURL` has the place of the model
Complete False
  NotComplete: the job is not complete
Failed True
  {STORE_LOST}: a shard lost its state and no learner can restore it
    > bring the shard's volume or bucket back and annotate the job with `atoll.dev/retry`; or start
      over: with Ephemeral storage by the same annotation, else delete the job and apply it again
  DeadlineExceeded: spec.activeDeadlineSeconds have passed
    > give it more time: after an edit of the spec it continues
  ProcessFailed: only of `atoll run`: a process that the job needs failed again and again
    > see the log of the process that the message names
Failed False
  NotFailed: the job has not failed
Ready True
  Training: the job trains with all that it asks for, or learners still start
  Degraded: the job trains, but something of what it asks for is missing
    > see Degraded and Accepted
  Exporting as at Progressing
  Evaluating as at Progressing
  LearnersFinished as at Progressing
  Complete: the training is over and the model is written
Ready False
  Starting: the job has not begun to train
    > wait; the message names what is missing
  Waiting: the training waits for shards or for learners
    > see SyncerReady and Progressing
  Stalled: the step does not move
    > see Progressing
  Refused: the API server refuses a pod template, or objects without which the job does not train;
    what runs continues
    > see Accepted
  SyncerLost as at Progressing
  Suspended: the job is suspended
    > see Suspended
  Rejected: the manifest cannot be accepted; what runs continues with the one before
    > see Accepted
  Failed: the job has failed
    > see Failed
Ready Unknown
  SyncerSilent: the job has trained, and shard 0 does not answer now
    > see the pod and the log of shard 0
  NotRead as at SyncerReady
Stalled True
  Failed: the job has failed and does not continue by itself
    > see Failed
  Rejected: the manifest must be changed before it comes into force
    > see Accepted
  Refused: the API server refuses an object or a template of the job
    > see Accepted
Stalled False
  NotStalled: the job continues, or waits, by itself
"""
OF_EXIT_CODES: Final = tuple(
    ConditionReason("Failed", TRUE, row.reason, f"exit code {row.code}: {row.meaning}", row.remedy)
    for row in EXITS.values()
    if row.permanent
)


def _read(text: str) -> Iterator[ConditionReason]:
    """Read the rows of the table: a reason and its meaning, `>` before the remedy."""
    found: dict[tuple[str, str], ConditionReason] = {}
    for kind, status, body in re.findall(r"^(\w+) (\w+)\n((?:  .*\n)+)", text, re.MULTILINE):
        if (kind, status) == ("Failed", TRUE):
            yield from OF_EXIT_CODES
        for row in re.findall(r"^  (\w.*\n(?:    .*\n)*)", body, re.MULTILINE):
            words = " ".join(row.split())
            name, _, elsewhere = words.partition(" as at ")
            if elsewhere and (elsewhere, name) in found:
                each = replace(found[elsewhere, name], type=kind, status=status)
            else:
                name, _, rest = words.partition(": ")
                meaning, _, remedy = rest.partition(" > ")
                each = ConditionReason(kind, status, name, meaning, remedy)
            found[kind, name] = each
            yield each


REASONS: Final = tuple(_read(TABLE))
TYPES: Final = tuple(dict.fromkeys(each.type for each in REASONS))
STATUSES: Final = {(each.type, each.reason): each.status for each in REASONS}
REMEDIES: Final = {(each.type, each.reason): each.remedy for each in REASONS}
