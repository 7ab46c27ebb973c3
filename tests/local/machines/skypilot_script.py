"""What SkyPilot reads in a file, as JSON. Its own Python runs this; arguments: FILE NAME=VALUE…"""

import json
import sys

import sky
import yaml

given = [tuple(each.split("=", 1)) for each in sys.argv[2:]]
with open(sys.argv[1], encoding="utf-8") as file:
    config = yaml.safe_load(file)
secrets = [each for each in given if each[0] in config.get("secrets", {})]
variables = [each for each in given if each not in secrets]
task = sky.Task.from_yaml_config(config, env_overrides=variables, secrets_overrides=secrets)
found = {
    "run": task.run,
    "variables": sorted({**task.envs, **task.secrets}),
    "ports": [each.ports for each in task.resources],
    "spot": [each.use_spot for each in task.resources],
    "recovery": [each.job_recovery for each in task.resources],
    "mounts": [*task.storage_mounts],
}
sys.stdout.write(json.dumps(found))
