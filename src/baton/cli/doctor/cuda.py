"""What the doctor says of reads between the memory of CUDA devices."""

from baton.cli.doctor.finding import Finding, ok, warning
from baton.cli.doctor.probe import Tried
from baton.core.memory.kinds import CudaMemory

WHAT = "CUDA"
IPC = "cuda_ipc"  # UCX's name of its transport between devices of one host


def none_here(why: str) -> Finding:
    """Report that there is no CUDA on this machine."""
    return ok("fabrics", WHAT, f"none here, pools are host memory ({why.removeprefix('CUDA: ')})")


def untried(count: int, why: str) -> Finding:
    """Report that nothing on this machine can read from a device."""
    said, _, remedy = why.partition(": ")
    return ok("fabrics", WHAT, f"{count} devices, not tried, because nixl is {said}", remedy)


def between(source: CudaMemory, target: CudaMemory, tried: Tried) -> Finding:
    """Report the speed of reads from one device into another, and whether cuda_ipc works."""
    pair = f"from {source} into {target}"
    if tried.found.why:
        return warning(
            "fabrics",
            WHAT,
            f"reads {pair} fail: {tried.found.why}",
            "pools in host memory do not need them; for pools on a device, see that NIXL is the "
            "package for this CUDA (nixl-cu12, nixl-cu13) and that the device has free memory",
        )
    said = (
        f"{tried.found.gbytes_s:.1f} GB/s {pair} over {tried.transport or 'an unnamed transport'}, "
        f"{tried.found.small_us:.0f} us for 4 KiB; every byte right"
    )
    if tried.transport.startswith(IPC):
        return ok("fabrics", WHAT, f"{IPC} works: {said}")
    return warning(
        "fabrics",
        WHAT,
        f"{IPC} does not work here: {said}",
        "without NVLink, UCX needs CUDA_IPC_ENABLE_GET_ZCOPY=on in NIXL's engine_config, which is "
        "Baton's default; in containers, both processes need the same devices and PID namespace",
    )
