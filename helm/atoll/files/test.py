"""What `helm test` runs: a tiny job, from its creation to Complete, through the API server.

It runs in the operator's image with the rights of a Role in one namespace, and needs no image and
no network but those of the job. The exit code is that of the test; what it prints says why.
"""

import json
import os
import sys
import time

from kubernetes import client, config

NAMESPACE, NAME, REGION = (os.environ[f"TEST_{each}"] for each in ("NAMESPACE", "JOB", "REGION"))
SECONDS_MAX = float(os.environ["TEST_SECONDS"])
JOBS = {"group": "atoll.dev", "version": "v1alpha1", "plural": "decoupledtrainingjobs"}
WHERE = {**JOBS, "namespace": NAMESPACE, "name": NAME}
COMMAND = ["atoll-worker", "bytegpt.train:main"]
LEARNER = {"name": "train", "command": COMMAND, "args": ["--batch=2", "--context=32"]}
MANIFEST = {
    "apiVersion": "atoll.dev/v1alpha1",
    "kind": "DecoupledTrainingJob",
    "metadata": {"name": NAME},
    "spec": {
        "steps": 40,
        "regions": [{"name": REGION, "learners": 2, "placement": "Anywhere"}],
        "learner": {"template": {"spec": {"containers": [LEARNER]}}},
        "sync": {"fragments": 2, "period": 10, "overlap": 2},
        "activeDeadlineSeconds": int(SECONDS_MAX),
    },
}


def delete(jobs):
    """Delete the job, if it is there, and wait until it is gone."""
    try:
        jobs.delete_namespaced_custom_object(**WHERE)
        while True:
            jobs.get_namespaced_custom_object(**WHERE)
            time.sleep(1)  # a watch would need another right, and a deletion takes seconds
    except client.ApiException as error:
        if error.status != 404:
            raise


def follow(jobs):
    """Print what changes until the job has ended; returns whether it is Complete."""
    told, until = "", time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        status = jobs.get_namespaced_custom_object(**WHERE).get("status", {})
        found = {each["type"]: each for each in status.get("conditions", [])}
        ready = found.get("Ready", {"reason": "", "message": "the operator has not looked at it"})
        text = f"{ready['reason']}: {ready['message']}"
        if text != told:
            print(text, flush=True)
            told = text
        for kind in ("Complete", "Failed"):
            if found.get(kind, {}).get("status") == "True":
                return kind == "Complete"
        if found.get("Accepted", {}).get("status") == "False":
            return False
        time.sleep(2)  # likewise: a test looks some hundred times in all
    print(f"not Complete after {SECONDS_MAX:.0f} s")
    print(json.dumps(status.get("conditions", []), indent=2))
    return False


def main():
    """Returns the exit code."""
    config.load_incluster_config()
    jobs = client.CustomObjectsApi()
    delete(jobs)  # of a former test that was stopped
    jobs.create_namespaced_custom_object(**JOBS, namespace=NAMESPACE, body=MANIFEST)
    try:
        done = follow(jobs)
    finally:
        delete(jobs)
    print(f"job {NAME} in namespace {NAMESPACE} {'was trained' if done else 'FAILED'}")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
