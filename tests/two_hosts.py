"""Two hosts on one machine: ppo_atari_multigpu.py in two network namespaces, with a cut link and a host that dies.

    sudo $(which python) tests/two_hosts.py        (Linux, iproute2; 15 minutes)

It makes the namespaces ppo-h0 and ppo-h1 and /etc/netns/ppo-h*, and removes them at the end. A torchrun in each starts
one rank. First the two must train to the weights of two ranks on one host, bit for bit. Then, in a long run, the link
is cut for 45 seconds; SIGKILL ends all of host 1, and its torchrun is started again. Each time the training goes on,
and the log has each step once. Last, SIGTERM to host 1's torchrun alone stops both ranks with a checkpoint.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = map(str, Path(__file__).parents[:2])
from ranks import SMALL  # noqa: E402
from toy_envs import ROOT, checkpoint, newest_run, same_weights, scalars  # noqa: E402

SCRIPT = str(ROOT / "ppo_atari_multigpu.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SETTINGS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def make_hosts():
    for i in (0, 1):
        ip("netns", "add", f"ppo-h{i}")
        Path(f"/etc/netns/ppo-h{i}").mkdir(parents=True)
        Path(f"/etc/netns/ppo-h{i}/hosts").write_text("127.0.0.1 localhost\n10.77.0.1 host0\n10.77.0.2 host1\n")
    ip("link", "add", "v0", "netns", "ppo-h0", "type", "veth", "peer", "name", "v1", "netns", "ppo-h1")
    for i in (0, 1):
        ip("-n", f"ppo-h{i}", "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"v{i}")
        ip("-n", f"ppo-h{i}", "link", "set", f"v{i}", "up")
        ip("-n", f"ppo-h{i}", "link", "set", "lo", "up")


def remove_hosts():
    for i in (0, 1):
        kill_host(i)
        subprocess.run(["ip", "netns", "del", f"ppo-h{i}"], stderr=subprocess.DEVNULL)
        shutil.rmtree(f"/etc/netns/ppo-h{i}", ignore_errors=True)


def kill_host(i):
    found = subprocess.run(["ip", "netns", "pids", f"ppo-h{i}"], capture_output=True, text=True)
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)


def torchrun(i, name, options, folder):
    """Starts host i's torchrun in `folder`."""
    several = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"]
    command = [*TORCHRUN, *several, f"--rdzv-id={name}", "--rdzv-endpoint=host0:29400", SCRIPT, *options.split()]
    host = ["ip", "netns", "exec", f"ppo-h{i}", "unshare", "--uts", "sh", "-c", f'hostname host{i}; exec "$@"', "sh"]
    with open(folder / f"{name}_host{i}", "a") as output:
        return subprocess.Popen([*host, *command], cwd=folder, env=os.environ | SETTINGS, stdout=output, stderr=output)


def wait_for(what, seconds):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


def step(folder):
    """That of the newest checkpoint of a folder's only run, or -1."""
    return max((int(path.stem[11:]) for path in folder.glob("runs/*/checkpoint_*.pt")), default=-1)


def check(folder):
    options = f"{SMALL} --total-timesteps 1280"
    for name in ("one", "two", "long"):
        (folder / name).mkdir()
    one = [*TORCHRUN, "--standalone", "--nproc-per-node=2", SCRIPT, *options.split()]
    subprocess.run(one, cwd=folder / "one", env=os.environ | SETTINGS, check=True)
    hosts = [torchrun(i, "two", options, folder / "two") for i in (0, 1)]
    assert [host.wait(600) for host in hosts] == [0, 0]
    assert same_weights(checkpoint(newest_run(folder / "one")), checkpoint(newest_run(folder / "two")))
    print("two hosts train to the weights of one, bit for bit", flush=True)

    long, options = folder / "long", f"{SMALL} --total-timesteps 10000000"
    hosts = [torchrun(i, "long", options, long) for i in (0, 1)]
    wait_for(lambda: step(long) >= 256, 300)
    ip("-n", "ppo-h1", "link", "set", "v1", "down")
    time.sleep(45)
    before = step(long)
    ip("-n", "ppo-h1", "link", "set", "v1", "up")
    began = time.monotonic()
    wait_for(lambda: step(long) >= before + 512, 900)
    print(f"the link was cut for 45 s; 4 updates more after {time.monotonic() - began:.0f} s", flush=True)

    before = step(long)
    kill_host(1)
    hosts[1].wait(10)
    time.sleep(10)
    hosts[1] = torchrun(1, "long", options, long)
    began = time.monotonic()
    wait_for(lambda: step(long) >= before + 512, 900)
    print(f"host 1 was killed; 4 updates more {time.monotonic() - began:.0f} s after its new start", flush=True)

    hosts[1].send_signal(signal.SIGTERM)
    codes = [host.wait(600) for host in hosts]  # host 0's torchrun waits 5 minutes for the other
    [run] = (long / "runs").iterdir()
    last, log = checkpoint(run)["global_step"], scalars(run)
    assert [at for at, _ in log["losses/policy_loss"]] == list(range(128, last + 1, 128))
    assert codes[0] == 0, codes
    print(f"SIGTERM to host 1 stopped both at step {last}; torchrun's exit codes {codes}; the log is whole", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            make_hosts()
            check(Path(folder))
        except BaseException:
            for output in sorted(Path(folder).glob("*/*_host[01]")):
                print(f"{output.name}:", *output.read_text().splitlines()[-40:], sep="\n  ", flush=True)
            raise
        finally:
            remove_hosts()
