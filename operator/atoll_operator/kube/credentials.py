"""A region's credentials for another cluster, for `atoll credentials`: by a person's own rights.

The person may read the job and the Secret with its authority in the cluster where the syncer runs;
the operator takes no part. What is printed holds private keys.
"""

import base64
from typing import Any

import urllib3
import yaml
from kubernetes import client

from atoll_operator.api.manifest import from_object
from atoll_operator.api.spec import Job
from atoll_operator.api.syncer import TlsMode
from atoll_operator.certificates import Authorities
from atoll_operator.kube.names import GROUP, PLURAL, VERSION, authority_name, credentials_name
from atoll_operator.kube.person import CALL_SECONDS_MAX, REMEDY, reach, refused
from atoll_operator.kube.plan import brought
from atoll_protos.errors import SpecError
from atoll_protos.identity import Owner

DAY_SECONDS = 86_400
NOT_FOUND = 404
NO_OTHER = "the job has no region in another cluster, and needs no credentials"


def credentials_of(
    job: str, region: str, *, namespace: str, context: str, days: float, now: float
) -> str:
    """The Secret as YAML. `now` is in UNIX seconds. Raises SpecError."""
    here = reach("", namespace, context)
    try:
        raw: Any = client.CustomObjectsApi(here.api).get_namespaced_custom_object(
            GROUP, VERSION, here.namespace, PLURAL, job, _request_timeout=CALL_SECONDS_MAX
        )
        found = from_object(raw, stored=True)
        _check(found, region)
        secret = client.CoreV1Api(here.api).read_namespaced_secret(
            authority_name(job), here.namespace, _request_timeout=CALL_SECONDS_MAX
        )
    except client.ApiException as error:
        raise _refused(job, here.namespace, error) from error
    except urllib3.exceptions.HTTPError as error:
        raise SpecError(job, f"the cluster does not answer ({error})", REMEDY) from error
    files = {key: base64.b64decode(value) for key, value in (secret.data or {}).items()}
    owner = Owner(namespace=here.namespace, job=job, uid=raw["metadata"]["uid"])
    made = brought.secret(
        Authorities.from_files(files),
        owner,
        region,
        credentials_name(job, region),
        now,
        days * DAY_SECONDS,
    )
    return yaml.safe_dump(made, sort_keys=False)


def _check(job: Job, region: str) -> None:
    """Raises SpecError where there is nothing to print for this region."""
    tls, regions = job.spec.syncer.tls, [each.name for each in job.spec.regions]
    if region not in regions:
        others = [each for each in regions if each != job.spec.syncer_region]
        remedy = _one_of(others) if others else NO_OTHER
        raise SpecError("--region", f"{region} is no region of {job.name}", remedy)
    if region == job.spec.syncer_region:  # its operator alone may say what becomes of the job
        problem = f"{region} is where the syncer runs, and has its certificates"
        others = [each for each in regions if each != region]
        raise SpecError("--region", problem, _one_of(others) if others else NO_OTHER)
    if tls.mode is TlsMode.DISABLED:
        problem = "is Disabled: its processes talk in plain text and need no credentials"
        raise SpecError("spec.syncer.tls.mode", problem, "apply the manifest in that cluster")
    if tls.issuer_ref is not None:
        problem = "is given: cert-manager issues the certificates of this job, not the operator"
        remedy = "let an issuer of the same authority make them in that cluster"
        raise SpecError("spec.syncer.tls.issuerRef", problem, remedy)


def _one_of(regions: list[str]) -> str:
    return f"give one of {', '.join(regions)}"


def _refused(job: str, namespace: str, error: client.ApiException) -> SpecError:
    if error.status != NOT_FOUND:
        return refused(job, error)
    problem = f"there is no such job in the namespace {namespace}, or it has no authority yet"
    remedy = (
        "use the kubeconfig of the cluster where its syncer runs, and -n; the operator there makes"
        " the authority when it starts the job"
    )
    return SpecError(job, problem, remedy)
