"""The example files for schedulers are what the programs take: usage: examples_test.py ROOT TROUPE"""

import pathlib
import re
import subprocess
import sys
import tomllib

import yaml

root, troupe = pathlib.Path(sys.argv[1]), sys.argv[2]
examples = root / "docs" / "examples"


def require(holds, what):
    if not holds:
        sys.exit(f"docs/examples: {what}")


def flags_of(command):
    told = subprocess.run([troupe, command, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"--[a-z][a-z-]*", told.stdout))


def check_commands(where, text):
    """Every `troupe COMMAND ..` in a text uses flags that the command has."""
    text = text.replace("\\\n", " ")
    found = re.findall(r"\btroupe (launch|join)\b([^\n]*)", text)
    require(found, f"{where} runs no troupe")
    for command, rest in found:
        unknown = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest.split(" -- ")[0])) - flags_of(command)
        require(not unknown, f"{where}: troupe {command} has no {' '.join(sorted(unknown))}")
    return {command for command, _ in found}


def check_kubernetes():
    documents = {each["kind"]: each for each in yaml.safe_load_all(
        (examples / "kubernetes.yaml").read_text())}
    job = documents["Job"]["spec"]
    require(job["completionMode"] == "Indexed", "the Job is not indexed")
    config = tomllib.loads(documents["ConfigMap"]["data"]["run.toml"])
    require(config["cluster"]["launch"] == "none", "the Job's stages join by themselves")
    require(job["completions"] == job["parallelism"] == config["pipeline"]["stages"] + 1,
            "the Job has a pod for the trainer and one for each stage")
    pod = job["template"]["spec"]
    script = pod["containers"][0]["args"][0]
    require(check_commands("kubernetes.yaml", script) == {"launch", "join"},
            "the Job launches and joins")
    require(f"join {config['link']['listen']}" in script, "stages join where the trainer listens")
    require(pod["subdomain"] == documents["Service"]["metadata"]["name"], "pods have no names")
    secret = next(each["secret"] for each in pod["volumes"] if "secret" in each)
    require(secret["defaultMode"] == 0o400, "the secret may be read by others")


check_kubernetes()
check_commands("slurm.sbatch", (examples / "slurm.sbatch").read_text())
check_commands("troupe-stage@.service", (examples / "troupe-stage@.service").read_text())
for name in ("slurm.toml", "mpi.toml"):
    require(tomllib.loads((examples / name).read_text())["cluster"]["launch"] == name.split(".")[0],
            f"{name} launches otherwise")
