"""`python -m benchmarks.gpu [PART ...]`: everything, or the parts named, unattended, each in a process of its own."""

import argparse
import subprocess
import sys
import time

import torch
from rich.console import Console

PARTS = {
    "parity": "hotloop's logits and tokens beside transformers'",
    "stress": "10,000 random requests, of which none is lost",
    "figures": "decode, prefill, batches, and how long the card waits, beside what the card could do",
    "tools": "tool calls with forced tokens and drafts, on and off",
    "peer": "transformers at the same shapes",
}


def main() -> int:
    epilog = "\n".join(f"  {name:8} {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="all of them if none is named")
    parts = parser.parse_args().parts or [*PARTS]
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"there is no part {' or '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device: this runs on a machine with a card")
    console = Console()
    failed = []
    for part in parts:
        console.rule(part)
        began_at = time.perf_counter()
        if subprocess.run([sys.executable, "-m", f"benchmarks.gpu.{part}"], check=False).returncode:
            failed.append(part)
        console.print(f"{part}: {time.perf_counter() - began_at:.0f} s")
    if failed:
        console.print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
