"""The example files are what the programs and their schedulers take: usage: examples_test.py ROOT TROUPE

Each configuration passes `troupe check`. The scripts of the Job and of sbatch are run with a stand-in for troupe, which
writes down how it is called; a join that they make is then made with the real one. The unit is read as systemd does,
and by systemd-analyze where that is installed. Kubernetes and systemd themselves are not needed. In README.md and docs/
each `troupe COMMAND ..` is a command, with flags that it has.
"""

import configparser
import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib

import yaml

root, troupe = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
examples = root / "docs" / "examples"
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}

# Each call's words are a line of `calls`; how it ends is the line of `codes` that is due. Who calls once more is ended.
TROUPE = """
echo "$*" >>"$BOX/calls"
code=$(sed -n "$(wc -l <"$BOX/calls")p" "$BOX/codes")
[ -n "$code" ] || kill "$PPID"
exit "${code:-1}"
"""
STAND_INS = {
    "troupe": TROUPE,
    "getent": 'echo "$*" >>"$BOX/asked"\n',
    "sleep": "",
}
SHOWN = re.compile(r"(?:^(?:\S*/)?|`)troupe ([a-z]+)\b([^#`\n]*)", re.MULTILINE)
LEAST_SHOWN = 60


def require(holds, what):
    if not holds:
        sys.exit(f"examples: {what}")


@functools.cache
def flags_of(command):
    """The flags of a command of troupe, by its own help; none: there is no such command."""
    told = subprocess.run([troupe, command, "--help"], capture_output=True, text=True)
    return set(re.findall(r"--[a-z][a-z-]*", told.stdout)) if told.returncode == 0 else None


def check_pages():
    count = 0
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        for command, rest in SHOWN.findall(page.read_text()):
            count += 1
            known = flags_of(command)
            require(known, f"{page.name}: there is no troupe {command}")
            unknown = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest.split(" -- ")[0])) - known
            require(not unknown, f"{page.name}: troupe {command} has no {' '.join(sorted(unknown))}")
    require(count >= LEAST_SHOWN, f"the pages show {count} commands of troupe, fewer than there were")


def run_with_stand_ins(command, codes, environment):
    """How a command calls a troupe that ends with one of these codes after the other, which names it looks up, and
    how it ends itself."""
    with tempfile.TemporaryDirectory() as folder:
        box = pathlib.Path(folder)
        for name in ("calls", "asked"):
            (box / name).touch()
        (box / "codes").write_text("".join(f"{code}\n" for code in codes))
        for name, body in STAND_INS.items():
            (box / name).write_text(f"#!/bin/sh\n{body}")
            (box / name).chmod(0o755)
        done = subprocess.run(command, timeout=30, env={"PATH": f"{box}:/usr/bin:/bin", "BOX": str(box), **environment})
        calls, asked = ([line.split() for line in (box / name).read_text().splitlines()] for name in ("calls", "asked"))
        return calls, asked, done.returncode


def check_config(name, file, *sets, environment=None):
    """`troupe check` accepts a file, with batches that are small enough to measure the layers soon."""
    if not FASHION_MNIST.exists():
        print(f"{name} is not checked: Fashion-MNIST is not installed (./dev setup)")
        return
    words = [word for each in sets for word in ("--set", each)]
    done = subprocess.run([troupe, "check", file, *words, "--", "--batch-size", "8"], capture_output=True, text=True,
                          timeout=120, env={**os.environ, **(environment or {})})
    require(done.returncode == 0, f"troupe check refuses {name}: {done.stderr}")


def write_run(folder, config):
    """Files with a configuration and a secret."""
    file, secret = pathlib.Path(folder, "run.toml"), pathlib.Path(folder, "secret")
    file.write_text(config)
    secret.touch(mode=0o600)
    secret.write_text("known-to-all-of-them")
    return file, secret


def check_join(name, words, config):
    """`troupe join` takes these words, and the program those that it makes of them: it only misses its trainer."""
    with tempfile.TemporaryDirectory() as folder:
        file, secret = write_run(folder, config)
        here = [troupe, *words]
        here[2] = "127.0.0.1:1"
        here[here.index("--secret-file") + 1] = secret
        here[here.index("--config") + 1] = file
        done = subprocess.run(here, capture_output=True, text=True, timeout=60)
    require(done.returncode == 2 and "see whether the run's trainer has started" in done.stderr,
            f"{name}: troupe join does not take {' '.join(words)}: {done.stderr}")


def files_of(pod, documents):
    """Where the pod finds the configuration and the secret."""
    container, found = pod["containers"][0], {}
    places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    require(set(places) == {each["name"] for each in pod["volumes"]}, "the Job's mounts are not its volumes")
    for volume in pod["volumes"]:
        if "configMap" in volume:
            require(volume["configMap"]["name"] == documents["ConfigMap"]["metadata"]["name"],
                    "the Job mounts another ConfigMap")
            (key,) = documents["ConfigMap"]["data"]
            found["config"] = f"{places[volume['name']]}/{key}"
        if "secret" in volume:
            require(volume["secret"]["defaultMode"] == 0o400, "the secret may be read by others")
            found["secret"] = (places[volume["name"]], volume["secret"]["secretName"])
    return found


def check_names(documents, trainer):
    """The headless Service gives the Job's first pod the name at which the trainer listens."""
    job, service = documents["Job"], documents["Service"]
    require(job["apiVersion"] == "batch/v1" and job["spec"]["completionMode"] == "Indexed", "the Job is not indexed")
    require(service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"],
            "the Service does not name pods, or only those that are ready")
    require(service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}, "the Service has other pods")
    require(job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"], "pods have no names")
    require(trainer == f"{job['metadata']['name']}-0.{service['metadata']['name']}",
            f"{trainer} is not the name of the Job's first pod")


def check_pods(pod, trainer, listen, files, stages):
    """The first pod launches; each other one joins as its stage, again as long as the trainer does not admit it."""
    container = pod["containers"][0]
    command = [*container["command"], *container["args"]]

    def run(index, *codes):
        return run_with_stand_ins(command, codes, {"JOB_COMPLETION_INDEX": str(index)})

    secret = f"{files['secret'][0]}/secret"
    for code in (0, 1):
        require(run(0, code) == ([["launch", files["config"]]], [["hosts", trainer]], code),
                "the Job's first pod does not launch the run once, and end with it")
    for stage in range(stages):
        join = ["join", listen, "--name", f"stage-{stage}", "--secret-file", secret, "--config", files["config"]]
        require(run(stage + 1, 2, 2, 0) == ([join] * 3, [["hosts", trainer]], 0),
                f"the Job's pod {stage + 1} does not join until it is admitted")
        require(run(stage + 1, 1)[::2] == ([join], 1), f"the Job's pod {stage + 1} hides that its run has failed")
    return join


def check_kubernetes():
    text = (examples / "kubernetes.yaml").read_text()
    documents = {each["kind"]: each for each in yaml.safe_load_all(text)}
    job = documents["Job"]["spec"]
    written = documents["ConfigMap"]["data"]["run.toml"]
    config = tomllib.loads(written)
    require(config["cluster"]["launch"] == "none", "the Job's stages join by themselves")
    stages, listen = config["pipeline"]["stages"], config["link"]["listen"]
    require(job["completions"] == job["parallelism"] == stages + 1,
            "the Job has a pod for the trainer and one for each stage")
    trainer = listen.split(":")[0]
    check_names(documents, trainer)
    pod = job["template"]["spec"]
    files = files_of(pod, documents)
    require(f"create secret generic {files['secret'][1]} --from-file=secret=" in text, "the secret is not as made")
    require(config["link"]["secret_file"] == f"{files['secret'][0]}/secret", "the trainer has another secret")
    join = check_pods(pod, trainer, listen, files, stages)
    check_join("kubernetes.yaml", join, written)
    with tempfile.TemporaryDirectory() as folder:
        file, secret = write_run(folder, written)
        check_config("kubernetes.yaml", file, f"link.secret_file={secret}")


def check_unit(words):
    """systemd knows all that the unit says, of a program that is there."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        print("troupe-stage@.service is not verified: systemd-analyze is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        text = (examples / "troupe-stage@.service").read_text().replace(words[0], str(troupe))
        file = pathlib.Path(folder, "troupe-stage@0.service")
        file.write_text(text)
        done = subprocess.run([analyze, "verify", "--man=no", file], capture_output=True, text=True, timeout=60)
    wrong = [line for line in (done.stdout + done.stderr).splitlines() if "troupe-stage@" in line]
    require(not wrong, f"systemd refuses the unit: {' '.join(wrong)}")


def check_systemd():
    unit = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    unit.optionxform = str
    unit.read(examples / "troupe-stage@.service")
    require(unit.sections() == ["Unit", "Service", "Install"], "the unit has other sections")
    service = unit["Service"]
    words = [word.replace("%i", "0") for word in shlex.split(service["ExecStart"])]
    require(re.fullmatch(r"/.*/troupe", words[0]) and words[1] == "join", "the unit runs no troupe join by its path")
    require(words[words.index("--name") + 1] == "stage-0", "instance 0 of the unit is not stage 0")
    require(service.get("Restart") == "on-failure", "the unit does not join again where no trainer listens yet")
    check_unit(words)
    check_join("troupe-stage@.service", words[1:], '[cluster]\nprogram = "resnet_pipeline"\n')


def check_slurm():
    script = examples / "slurm.sbatch"
    calls, _, code = run_with_stand_ins(["/bin/sh", script], [7], {})
    require(code == 7 and len(calls) == 1, "slurm.sbatch does not end with its only launch")
    require(calls[0][:3] == ["launch", "docs/examples/slurm.toml", "--"], "slurm.sbatch launches another file")
    told = subprocess.run([troupe.parent / "resnet_pipeline", "--help"], capture_output=True, text=True, check=True)
    for flag in (word for word in calls[0][3:] if word.startswith("--")):
        require(re.search(rf"{flag}\b", told.stdout), f"slurm.sbatch: resnet_pipeline has no {flag}")


check_pages()
check_kubernetes()
check_systemd()
check_slurm()
check_config("slurm.toml", examples / "slurm.toml", environment=ALLOCATION)
check_config("mpi.toml", examples / "mpi.toml")
for sample in ("fashion_mnist.toml", "one_machine.toml", "two_hosts.toml"):
    check_config(sample, root / "apps" / "resnet_pipeline" / sample, "cluster.program=resnet_pipeline")
